// Tokenizers against the reference implementation (cases.json says which), the older file formats, and damaged files.
#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/support.h"
#include "tokenizer/compose.h"
#include "util/error.h"
#include "util/file.h"

namespace strata {
namespace {

using Json = nlohmann::json;

Json families() { return Json::parse(read_file(fs::path(STRATA_TEST_DATA) / "cases.json")).at("families"); }

TEST(Tokenizer, AgreesWithTheReferenceTokenForTokenAndPlaceForPlace) {
  int64_t compared = 0;
  for (const Json& family : families()) {
    const std::string name = family.at("name");
    const Tokenizer tokenizer = Tokenizer::from_json(family.at("tokenizer").dump(), name);
    for (const Json& item : family.at("cases")) {
      const auto text = item.at("text").get<std::string>();
      const Encoding encoding = tokenizer.encode(text);
      ASSERT_EQ(encoding.ids, item.at("ids").get<std::vector<int32_t>>()) << name << ": " << text;
      ASSERT_EQ(encoding.places.size(), encoding.ids.size());
      const std::string composed = compose(text, {0, static_cast<int64_t>(text.size())}).text;
      for (size_t i = 0; i < encoding.ids.size(); ++i, ++compared) {
        const Json& place = item.at("places")[i];
        if (place.is_null()) continue;
        const TextRange ours = encoding.places[i], theirs{place[0], place[1]};
        if (name == "Qwen2" && text != composed) {  // ours is all of a composed character, theirs its first part
          EXPECT_TRUE(ours.begin <= theirs.begin && ours.end >= theirs.end) << name << ": " << text << ", token " << i;
        } else {
          EXPECT_EQ(ours, theirs) << name << ": " << text << ", token " << i;
        }
      }
    }
  }
  EXPECT_GT(compared, 3000);
}

TEST(Tokenizer, ComposesCharactersAndKeepsTheirPlaces) {
  const ComposedText accents = compose("xe\u0301y\u212b", {1, 8});
  EXPECT_EQ(accents.text, "\u00e9y\u00c5");
  EXPECT_EQ(accents.sources[0], (TextRange{1, 4}));
  EXPECT_EQ(accents.sources[2], (TextRange{4, 5}));
  EXPECT_EQ(accents.sources[4], (TextRange{5, 8}));
  const std::string broken = "a\xcc\x81\xff\xcc\x81 \xe2\x82";
  EXPECT_EQ(compose(broken, {0, static_cast<int64_t>(broken.size())}).text, "\u00e1\xff\xcc\x81 \xe2\x82");
  EXPECT_FALSE(may_compose("caf\u00e9 na\u00efve", {0, 12}));
}

TEST(Tokenizer, AddedTokensThatAreTextAreWritten) {
  for (const Json& family : families()) {
    if (family.at("name") != "Qwen2") continue;
    const Tokenizer tokenizer = Tokenizer::from_json(family.at("tokenizer").dump(), "Qwen2");
    const Encoding encoding = tokenizer.encode("the<tool> mill<|end|>");
    EXPECT_EQ(tokenizer.decode(encoding.ids), "the<tool> mill");
    EXPECT_TRUE(tokenizer.is_special(tokenizer.special_id("<|end|>")));
    EXPECT_FALSE(tokenizer.is_special(tokenizer.special_id("<tool>")));
  }
}

TEST(Tokenizer, PatternsThatAreNotKnownAreNamed) {
  for (const Json& family : families()) {
    if (family.at("name") != "Llama 3") continue;
    auto refuse = [&](const char* pointer, const Json& value, const std::string& words) {
      Json changed = family.at("tokenizer");
      changed[Json::json_pointer(pointer)] = value;
      const std::string message = error_of(ExitCode::kData, [&] { Tokenizer::from_json(changed.dump(), "t"); });
      EXPECT_TRUE(contains(message, words)) << message;
    };
    refuse("/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\w+",
           "pattern of Llama 3, Qwen2 or GPT-2, each match isolated, got \"\\w+\"");
    refuse("/pre_tokenizer/pretokenizers/0/behavior", "Removed", "each match isolated");
    refuse("/pre_tokenizer/pretokenizers/0/type", "Digits",
           "expected the pre_tokenizer ByteLevel, or Split and ByteLevel, got Digits, ByteLevel");
    refuse("/pre_tokenizer/pretokenizers/1/use_regex", true, "one behind a Split without use_regex");
    refuse("/pre_tokenizer", Json(), "got none");
    refuse("/normalizer", Json{{"type", "NFKC"}}, "or with NFC, got NFKC");
    refuse("/model/byte_fallback", true, "got a SentencePiece tokenizer");
    refuse("/model/end_of_word_suffix", "</w>", "without end_of_word_suffix");
  }
}

TEST(Tokenizer, SpecialTokensTakeWhiteSpaceOfAnyScript) {
  Json roberta = families()[3].at("tokenizer");
  auto ids = [&](const std::string& text) { return Tokenizer::from_json(roberta.dump(), "t").encode(text).ids; };
  for (const std::string white : {" ", "\t", "\u00a0", "\u2003\u3000", "\u0085 \u2028"}) {
    EXPECT_EQ(ids("a" + white + "<mask>b"), ids("a<mask>b"));
    EXPECT_NE(ids("a<mask>" + white + "b"), ids("a<mask>b")) << "only the space before it";
  }
  EXPECT_NE(ids("a\u200b<mask>b"), ids("a<mask>b")) << "a character without width is no white space";
  for (Json& token : roberta.at("added_tokens")) token["rstrip"] = token.at("content") == "<mask>";
  for (const std::string white : {" ", "\u00a0", "\u2003\u3000"})
    EXPECT_EQ(ids("a<mask>" + white + "b"), ids("a<mask>b"));
}

TEST(Tokenizer, ByteLevelTokensDecodeToTheirText) {
  for (const Json& family : families()) {
    if (family.at("name") != "GPT-2") continue;
    const Tokenizer tokenizer = Tokenizer::from_json(family.at("tokenizer").dump(), "GPT-2");
    for (const std::string text : {"The miller's boats.\n\n  Café 北京 👩‍👩‍👧", "\x01\x7f  "})
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text).ids), text);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("a<|endoftext|>b").ids), "ab");
    std::string every;
    for (int byte = 0; byte < 256; ++byte) every += static_cast<char>(byte);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(every).ids), every) << "bytes that are no text come back as well";
    const std::string longest(100000, 'e');  // one word, merged in order
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(longest).ids), longest);
  }
}

// A model file holds a tokenizer in two parts. Together they give the same tokens.
TEST(Tokenizer, WordPiecesGoApartAndTogether) {
  int64_t compared = 0, refused = 0;
  for (const Json& family : families()) {
    const std::string name = family.at("name");
    const Tokenizer tokenizer = Tokenizer::from_json(family.at("tokenizer").dump(), name);
    if (family.at("tokenizer").at("model").at("type") != "WordPiece") {
      EXPECT_SAYS(error_of(ExitCode::kData, [&] { tokenizer.word_pieces(name); }), name + ": expected a WordPiece");
      ++refused;
      continue;
    }
    const WordPieces pieces = tokenizer.word_pieces(name);
    EXPECT_EQ(static_cast<int64_t>(pieces.tokens.size()), tokenizer.size());
    const Tokenizer again = Tokenizer::from_word_pieces(pieces, name);
    EXPECT_EQ(again.word_pieces(name).tokens, pieces.tokens);
    EXPECT_EQ(again.word_pieces(name).recipe, pieces.recipe);
    for (const Json& item : family.at("cases")) {
      for (const char* around : {"", "[MASK]", " [SEP] Caf\u00e9"}) {
        const std::string text = item.at("text").get<std::string>() + around;
        EXPECT_EQ(again.encode(text, false).ids, tokenizer.encode(text, false).ids) << name << ": " << text;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 100);
  EXPECT_GT(refused, 0);
}

TEST(Tokenizer, DamagedPartsAreNamed) {
  const std::string words = R"("model":{"type":"WordPiece","tokens":2})";
  auto refuse = [](const std::string& recipe, const char* part) {
    const std::string message = error_of(ExitCode::kData, [&] {
      Tokenizer::from_word_pieces({{"[UNK]", "a"}, recipe}, "m");
    });
    EXPECT_SAYS(message, part);
  };
  EXPECT_EQ(Tokenizer::from_word_pieces({{"[UNK]", "a"}, "{" + words + "}"}, "m").encode("a b", false).ids,
            (std::vector<int32_t>{1, 0}));
  refuse("[]", "expected a JSON object");
  refuse("{}", "expected an object \"model\"");
  refuse(R"({"model":{"tokens":3}})", "expected at most 2 tokens");
  refuse(R"({"model":{"tokens":0}})", "expected the unknown token [UNK]");
  refuse("{" + words + R"(,"added_tokens":[{"id":2,"content":"x"}]})", "expected ids below 2, got 2");
}

TEST(Tokenizer, LongTextsAreCutAndKeepTheirSpecialTokens) {
  const Json family = families()[0];
  const Tokenizer tokenizer = Tokenizer::from_json(family.at("tokenizer").dump(), "WordPiece");
  const Encoding all = tokenizer.encode("the river runs past the old mill"),
                 cut = tokenizer.encode("the river runs past", true, 5);
  ASSERT_EQ(cut.ids.size(), 5u);
  EXPECT_EQ(cut.ids.front(), all.ids.front());
  EXPECT_EQ(cut.ids.back(), all.ids.back());
  EXPECT_TRUE(std::equal(cut.ids.begin(), cut.ids.begin() + 4, all.ids.begin()));
  EXPECT_EQ(tokenizer.encode("the river", false).ids.size() + 2, tokenizer.encode("the river").ids.size());
  EXPECT_EQ(tokenizer.decode(all.ids), "the river runs past the old mill");
}

TEST(Tokenizer, OlderFilesGiveTheSameTokens) {
  const TempFolder folder;
  for (const Json& family : families()) {
    const std::string name = family.at("name");
    if (name == "Llama 3" || name == "Qwen2") continue;  // older files do not name their pattern of words
    const Json& model = family.at("tokenizer").at("model");
    const Tokenizer whole = Tokenizer::from_json(family.at("tokenizer").dump(), name);
    const fs::path place = folder.path() / std::to_string(std::hash<std::string>()(name));
    const std::string prefix = place.filename().string() + "/";
    if (model.at("type") == "WordPiece") {
      std::vector<std::string> tokens(model.at("vocab").size());
      for (const auto& [token, id] : model.at("vocab").items()) tokens[id.get<size_t>()] = token;
      std::string text;
      for (const std::string& token : tokens) text += token + "\n";
      folder.write(prefix + "vocab.txt", text);
      const bool cased = name == "cased WordPiece";
      folder.write(prefix + "tokenizer_config.json", Json{{"do_lower_case", !cased}}.dump());
    } else {
      folder.write(prefix + "vocab.json", model.at("vocab").dump());
      std::string merges = "#version: 0.2\n";
      for (const Json& merge : model.at("merges"))
        merges += merge.is_string() ? merge.get<std::string>() + "\n"
                                    : merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
      folder.write(prefix + "merges.txt", merges);
      folder.write(prefix + "tokenizer_config.json",
                   Json{{"add_prefix_space", name.find("front") != std::string::npos}}.dump());
    }
    const Tokenizer older = Tokenizer::load(place);
    for (const Json& item : family.at("cases")) {
      const auto text = item.at("text").get<std::string>();
      EXPECT_EQ(older.encode(text).ids, whole.encode(text).ids) << name << ": " << text;
      EXPECT_EQ(older.encode(text).places, whole.encode(text).places) << name << ": " << text;
    }
  }
}

TEST(Tokenizer, MistakesAreNamed) {
  auto refuse = [](const Json& json, const std::string& words) {
    const std::string message = error_of(ExitCode::kData, [&] { Tokenizer::from_json(json.dump(), "t"); });
    EXPECT_TRUE(contains(message, words)) << message;
  };
  EXPECT_TRUE(contains(error_of(ExitCode::kData, [] { Tokenizer::from_json("[1", "t"); }),
                       "expected a JSON object, got invalid JSON"));
  const Json wordpiece = families()[0].at("tokenizer"), bpe = families()[2].at("tokenizer");
  auto changed = [](Json json, const char* pointer, const Json& value) {
    json[Json::json_pointer(pointer)] = value;
    return json;
  };
  refuse({{"model", 3}}, "expected an object \"model\"");
  refuse(changed(wordpiece, "/model/type", "Unigram"), "expected a WordPiece or byte-level BPE tokenizer, got Unigram");
  refuse(changed(wordpiece, "/normalizer/type", "NFC"), "BertNormalizer, got NFC");
  refuse(changed(wordpiece, "/model/unk_token", "[NO]"), "expected the unknown token [NO]");
  refuse(changed(wordpiece, "/model/vocab/the", 1u << 30), "token \"the\": expected an id below");
  refuse(changed(wordpiece, "/model/vocab/the", 0), "have the same id 0");
  refuse(changed(wordpiece, "/model/vocab/the", -1), "got -1");
  refuse(changed(wordpiece, "/model/vocab", Json::object()), "expected a vocabulary");
  refuse(changed(bpe, "/model/merges/0", "one"), "two tokens in a merge, got \"one\"");
  refuse(changed(bpe, "/model/merges/0", Json::array({"qqq", "e"})),
         "expected the merge part \"qqq\" in the vocabulary");
  refuse(changed(bpe, "/pre_tokenizer/type", "Whitespace"), "ByteLevel, got Whitespace");
  refuse(changed(bpe, "/post_processor", {{"type", "Other"}}), "got Other");
  const TempFolder folder;
  EXPECT_TRUE(contains(error_of(ExitCode::kData, [&] { Tokenizer::load(folder.path()); }), "expected tokenizer.json"));
  // Tokens around a text have ids, too. One that does not fit 32 bits would become another.
  const Json cls = {{"type", "BertProcessing"}, {"cls", {"[CLS]", 4294967297u}}, {"sep", {"[SEP]", 3}}};
  refuse(changed(wordpiece, "/post_processor", cls), "expected cls to have a token and its id");
  refuse(changed(wordpiece, "/post_processor/special_tokens/[CLS]/ids/0", uint64_t{1} << 40), "in the template");
  const Json far = changed(wordpiece, "/post_processor/special_tokens/[CLS]/ids/0", 5000);
  EXPECT_EQ(Tokenizer::from_json(far.dump(), "t").size(), 5001);
  // A message repeats a part of a long token.
  Json longest = wordpiece;
  longest["model"]["vocab"][std::string(100000, 'x')] = -1;
  EXPECT_LT(error_of(ExitCode::kData, [&] { Tokenizer::from_json(longest.dump(), "t"); }).size(), 200u);
}

}  // namespace
}  // namespace strata
