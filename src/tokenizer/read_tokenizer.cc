// Tokenizers from Hugging Face folders.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "tokenizer/byte_bpe.h"
#include "tokenizer/wordpiece.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"
#include "util/lines.h"
#include "util/text.h"

namespace strata {

using Json = nlohmann::json;

struct TokenizerReader {
  std::string where;  // for messages
  Tokenizer tokenizer;

  [[noreturn]] void fail(const std::string& reason) const { throw data_error("{}: {}", where, reason); }

  Json parse_text(const std::string& text, const std::string& name) {
    where = name;
    Json json = parse_json<Json>(text);
    if (!json.is_object()) fail("expected a JSON object, got " + json_kind(json, text));
    return json;
  }
  Json parse(const std::filesystem::path& path) { return parse_text(read_file(path), path.string()); }
  const Json& object(const Json& json, const char* key) const {
    if (!json.contains(key) || !json[key].is_object()) fail(fmt::format("expected an object \"{}\"", key));
    return json[key];
  }
  // A part of the tokenizer that may be missing or null.
  static Json part(const Json& json, const char* key) {
    return json.contains(key) && json[key].is_object() ? json[key] : Json::object();
  }
  static bool flag(const Json& json, const char* key, bool otherwise) {
    return json.contains(key) && json[key].is_boolean() ? json[key].get<bool>() : otherwise;
  }
  static std::string word(const Json& json, const char* key, const std::string& otherwise) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : otherwise;
  }
  static std::string type_of(const Json& json) { return word(json, "type", ""); }

  // Tokens by id, from an object of ids by token.
  std::vector<std::string> vocabulary(const Json& json) const {
    if (!json.is_object() || json.empty()) fail("expected a vocabulary of tokens with their ids");
    constexpr size_t kSpare = 100000;  // at most this many ids may have no token
    std::vector<std::string> tokens;
    for (const auto& [token, id] : json.items()) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= json.size() + kSpare)
        fail(fmt::format("token \"{}\": expected an id below {}, got {}", shown(token), json.size() + kSpare,
                         shown(id.dump())));
      const auto at = id.get<size_t>();
      if (at >= tokens.size()) tokens.resize(at + 1);
      if (!tokens[at].empty())
        fail(fmt::format("the tokens \"{}\" and \"{}\" have the same id {}", shown(tokens[at]), shown(token), at));
      tokens[at] = token;
    }
    return tokens;
  }

  int32_t id_of(const std::vector<std::string>& tokens, const std::string& token) const {
    const auto found = std::find(tokens.begin(), tokens.end(), token);
    if (found == tokens.end()) fail(fmt::format("expected the special token {} in the vocabulary, found none", token));
    return static_cast<int32_t>(found - tokens.begin());
  }

  void set_model(std::unique_ptr<TokenModel> model) {
    tokenizer.size_ = std::max(tokenizer.size_, model->size());
    tokenizer.model_ = std::move(model);
  }
  void add_special(SpecialToken token) {
    if (token.text.empty()) return;
    tokenizer.size_ = std::max<int64_t>(tokenizer.size_, token.id + 1);
    tokenizer.special_.push_back(std::move(token));
  }
  static bool is_id(const Json& json) {
    constexpr uint64_t kLargest = 1 << 24;
    return json.is_number_unsigned() && json.get<uint64_t>() <= kLargest;
  }
  // The id of a token around a text.
  int32_t around(const Json& id) {
    tokenizer.size_ = std::max<int64_t>(tokenizer.size_, id.get<int32_t>() + 1);
    return id.get<int32_t>();
  }

  // ---- tokenizer.json

  void read_json(const Json& json) {
    const Json& model = object(json, "model");
    const Json normalizer = part(json, "normalizer"), splitter = part(json, "pre_tokenizer"),
               ending = part(json, "post_processor");
    std::string type = type_of(model);
    if (type.empty()) type = model.contains("merges") ? "BPE" : "WordPiece";
    if (type == "WordPiece") {
      read_wordpiece(model, normalizer, splitter);
    } else if (type == "BPE") {
      read_bpe(model, normalizer, splitter, ending);
    } else {
      fail(fmt::format("expected a WordPiece or byte-level BPE tokenizer, got {}", shown(type)));
    }
    read_added(json);
    read_ending(ending);
  }

  void read_added(const Json& json) {
    if (!json.contains("added_tokens") || !json["added_tokens"].is_array()) return;
    for (const Json& token : json["added_tokens"]) {
      if (!token.is_object() || !token.contains("id") || !is_id(token["id"]) || word(token, "content", "").empty())
        fail("expected added_tokens with an id and a content");
      add_special({word(token, "content", ""), token["id"].get<int32_t>(), flag(token, "lstrip", false),
                   flag(token, "rstrip", false), !flag(token, "special", true)});
    }
  }

  void read_wordpiece(const Json& model, const Json& normalizer, const Json& splitter) {
    if (const std::string type = type_of(normalizer); !type.empty() && type != "BertNormalizer")
      fail(fmt::format("expected the normalizer BertNormalizer, got {}", shown(type)));
    if (const std::string type = type_of(splitter); !type.empty() && type != "BertPreTokenizer")
      fail(fmt::format("expected the pre_tokenizer BertPreTokenizer, got {}", shown(type)));
    set_model(std::make_unique<WordPiece>(vocabulary(object(model, "vocab")), wordpiece_options(model, normalizer)));
  }

  static WordPiece::Options wordpiece_options(const Json& model, const Json& normalizer) {
    WordPiece::Options options;
    options.text.clean_text = flag(normalizer, "clean_text", true);
    options.text.chinese_characters = flag(normalizer, "handle_chinese_chars", true);
    options.text.lower_case = flag(normalizer, "lowercase", true);
    options.text.strip_accents = flag(normalizer, "strip_accents", options.text.lower_case);
    options.unknown = word(model, "unk_token", options.unknown);
    options.continuation = word(model, "continuing_subword_prefix", options.continuation);
    if (model.contains("max_input_chars_per_word") && model["max_input_chars_per_word"].is_number_unsigned())
      options.longest_word = model["max_input_chars_per_word"].get<int64_t>();
    return options;
  }

  // What Tokenizer::word_pieces() has taken apart. Added tokens may have ids behind those of the model.
  void read_parts(const WordPieces& pieces) {
    const Json json = parse_text(pieces.recipe, where);
    const Json& model = object(json, "model");
    const Json normalizer = part(json, "normalizer");
    if (!model.contains(kTokenCount) || !model[kTokenCount].is_number_unsigned() ||
        model[kTokenCount].get<uint64_t>() > pieces.tokens.size())
      fail(fmt::format("expected at most {} {} of the model", pieces.tokens.size(), kTokenCount));
    const auto count = static_cast<std::ptrdiff_t>(model[kTokenCount].get<uint64_t>());
    set_model(std::make_unique<WordPiece>(std::vector(pieces.tokens.begin(), pieces.tokens.begin() + count),
                                          wordpiece_options(model, normalizer)));
    read_added(json);
    if (tokenizer.size_ > static_cast<int64_t>(pieces.tokens.size()))
      fail(fmt::format("expected ids below {}, got {}", pieces.tokens.size(), tokenizer.size_ - 1));
  }

  void read_bpe(const Json& model, const Json& normalizer, const Json& splitter, const Json& ending) {
    if (flag(model, "byte_fallback", false))
      fail("expected byte-level BPE (GPT-2, RoBERTa, Llama 3, Qwen2), got a SentencePiece tokenizer (byte_fallback)");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!word(model, key, "").empty()) fail(fmt::format("expected byte-level BPE without {}", key));
    }
    if (const std::string type = type_of(normalizer); !type.empty() && type != "NFC")
      fail(fmt::format("expected byte-level BPE without a normalizer, or with NFC, got {}", shown(type)));
    ByteBpe::Options options = read_splitter(splitter);
    options.compose = type_of(normalizer) == "NFC";
    options.whole_words = flag(model, "ignore_merges", false);
    for (const Json& part : parts_of(ending, "processors")) {
      if (type_of(part) != "ByteLevel" && type_of(part) != "RobertaProcessing") continue;
      options.trim_places = flag(part, "trim_offsets", false);
      options.keep_first = flag(part, "add_prefix_space", false);
    }
    std::vector<std::pair<std::string, std::string>> merges;
    if (!model.contains("merges") || !model["merges"].is_array()) fail("expected a list of merges");
    for (const Json& merge : model["merges"]) {
      if (merge.is_string()) {
        merges.push_back(split_merge(merge.get<std::string>()));
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        merges.emplace_back(merge[0], merge[1]);
      } else {
        fail(fmt::format("expected merges of two tokens, got {}", shown(merge.dump())));
      }
    }
    set_model(std::make_unique<ByteBpe>(vocabulary(object(model, "vocab")), merges, options));
  }

  // The parts of a Sequence, or the one part that it is.
  static std::vector<Json> parts_of(const Json& json, const char* key) {
    if (type_of(json) != "Sequence") return {json};
    if (!json.contains(key) || !json[key].is_array()) return {};
    return {json[key].begin(), json[key].end()};
  }

  // GPT-2's ByteLevel, or a Split by a pattern that is known and a ByteLevel without one.
  ByteBpe::Options read_splitter(const Json& splitter) const {
    ByteBpe::Options options;
    const std::vector<Json> parts = parts_of(splitter, "pretokenizers");
    const Json bytes = parts.empty() ? Json::object() : parts.back();
    const bool split = parts.size() == 2 && type_of(parts[0]) == "Split";
    if (type_of(bytes) != "ByteLevel" || (parts.size() != 1 && !split)) {
      std::string types;
      for (const Json& part : parts)
        types += (types.empty() ? "" : ", ") + (type_of(part).empty() ? "none" : shown(type_of(part)));
      fail(fmt::format("expected the pre_tokenizer ByteLevel, or Split and ByteLevel, got {}",
                       types.empty() ? "none" : types));
    }
    options.space_in_front = flag(bytes, "add_prefix_space", false);
    if (split == flag(bytes, "use_regex", true) || (split && options.space_in_front)) {
      fail(
          "expected either a ByteLevel alone with use_regex, or one behind a Split without use_regex and prefix space");
    }
    if (!split) return options;
    const std::string expression = word(part(parts[0], "pattern"), "Regex", "");
    if (!find_word_pattern(expression, options.pattern) || word(parts[0], "behavior", "") != "Isolated" ||
        flag(parts[0], "invert", false))
      fail(fmt::format("expected a Split by the pattern of Llama 3, Qwen2 or GPT-2, each match isolated, got \"{}\"",
                       shown(expression.empty() ? parts[0].dump() : expression, 200)));
    return options;
  }

  std::pair<std::string, std::string> split_merge(const std::string& line) const {
    const size_t space = line.find(' ');
    if (space == 0 || space == std::string::npos || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string::npos)
      fail(fmt::format("expected two tokens in a merge, got \"{}\"", shown(line)));
    return {line.substr(0, space), line.substr(space + 1)};
  }

  // The special tokens around a sequence.
  void read_ending(const Json& ending) {
    const std::string type = type_of(ending);
    if (type == "Sequence") {
      for (const Json& part : parts_of(ending, "processors")) {
        if (type_of(part) == "Sequence") fail("expected a Sequence of post_processors without another inside");
        read_ending(part);
      }
      return;
    }
    auto pair = [&](const char* key) {
      if (!ending.contains(key) || !ending[key].is_array() || ending[key].size() != 2 || !is_id(ending[key][1]))
        fail(fmt::format("expected {} to have a token and its id", key));
      return around(ending[key][1]);
    };
    if (type == "BertProcessing" || type == "RobertaProcessing") {
      tokenizer.before_ = {pair("cls")};
      tokenizer.after_ = {pair("sep")};
    } else if (type == "TemplateProcessing") {
      read_template(ending);
    } else if (!type.empty() && type != "ByteLevel") {
      fail(fmt::format("expected a post_processor of BERT, RoBERTa, GPT-2 or a template, got {}", shown(type)));
    }
  }
  void read_template(const Json& ending) {
    const Json tokens = part(ending, "special_tokens");
    if (!ending.contains("single") || !ending["single"].is_array()) fail("expected the template to have \"single\"");
    bool behind = false;
    for (const Json& item : ending["single"]) {
      if (item.is_object() && item.contains("Sequence")) {
        behind = true;
        continue;
      }
      const std::string name = item.is_object() ? word(part(item, "SpecialToken"), "id", "") : "";
      const Json known = part(tokens, name.c_str());
      if (name.empty() || !known.contains("ids") || !known["ids"].is_array())
        fail("expected special tokens with their ids in the template");
      for (const Json& id : known["ids"]) {
        if (!is_id(id)) fail("expected special tokens with their ids in the template");
        (behind ? tokenizer.after_ : tokenizer.before_).push_back(around(id));
      }
    }
  }

  // ---- older files

  void read_vocab_txt(const std::filesystem::path& path, const Json& config) {
    where = path.string();
    std::vector<std::string> tokens;
    for_each_line(read_file(path), [&](std::string_view line, int64_t number) {
      tokens.resize(number - 1);  // the id of an empty line has no token
      tokens.emplace_back(line);
    });
    WordPiece::Options options;
    options.text.lower_case = flag(config, "do_lower_case", true);
    options.text.strip_accents = flag(config, "strip_accents", options.text.lower_case);
    options.text.chinese_characters = flag(config, "tokenize_chinese_chars", true);
    tokenizer.before_ = {id_of(tokens, "[CLS]")};
    tokenizer.after_ = {id_of(tokens, "[SEP]")};
    for (const char* token : {"[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"}) add_special({token, id_of(tokens, token)});
    set_model(std::make_unique<WordPiece>(std::move(tokens), options));
  }

  void read_vocab_json(const std::filesystem::path& path, const std::filesystem::path& merges_path,
                       const Json& config) {
    const std::vector<std::string> tokens = vocabulary(parse(path));
    const bool roberta = std::find(tokens.begin(), tokens.end(), "<s>") != tokens.end();
    ByteBpe::Options options;
    options.space_in_front = flag(config, "add_prefix_space", false);
    options.trim_places = roberta;
    options.keep_first = options.space_in_front;
    if (roberta) {
      tokenizer.before_ = {id_of(tokens, "<s>")};
      tokenizer.after_ = {id_of(tokens, "</s>")};
      for (const char* token : {"<s>", "<pad>", "</s>", "<unk>"}) add_special({token, id_of(tokens, token)});
      add_special({"<mask>", id_of(tokens, "<mask>"), true, false});
    } else {
      add_special({"<|endoftext|>", id_of(tokens, "<|endoftext|>")});
    }
    where = merges_path.string();
    std::vector<std::pair<std::string, std::string>> merges;
    for_each_line(read_file(merges_path), [&](std::string_view line, int64_t) {
      if (!line.starts_with("#version")) merges.push_back(split_merge(std::string(line)));
    });
    where = path.string();
    set_model(std::make_unique<ByteBpe>(tokens, merges, options));
  }
};

Tokenizer Tokenizer::from_json(const std::string& text, const std::string& where) {
  TokenizerReader reader;
  reader.read_json(reader.parse_text(text, where));
  return std::move(reader.tokenizer);
}

Tokenizer Tokenizer::from_word_pieces(const WordPieces& pieces, const std::string& where) {
  TokenizerReader reader;
  reader.where = where;
  reader.read_parts(pieces);
  return std::move(reader.tokenizer);
}

Tokenizer Tokenizer::load(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  TokenizerReader reader;
  const Json config =
      fs::exists(folder / "tokenizer_config.json") ? reader.parse(folder / "tokenizer_config.json") : Json::object();
  if (fs::exists(folder / "tokenizer.json")) {
    reader.read_json(reader.parse(folder / "tokenizer.json"));
  } else if (fs::exists(folder / "vocab.txt")) {
    reader.read_vocab_txt(folder / "vocab.txt", config);
  } else if (fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt")) {
    reader.read_vocab_json(folder / "vocab.json", folder / "merges.txt", config);
  } else {
    throw data_error("{}: expected tokenizer.json, or vocab.txt, or vocab.json and merges.txt, found none of them",
                     folder.string());
  }
  return std::move(reader.tokenizer);
}

}  // namespace strata
