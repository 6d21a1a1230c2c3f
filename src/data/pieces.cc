#include "data/pieces.h"

#include <algorithm>
#include <memory>

#include "tokenizer/tokenizer.h"
#include "util/error.h"

namespace strata {

std::vector<fs::path> embedding_files(const fs::path& folder) {
  constexpr std::string_view kNames[] = {"config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_known = std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
    if (is_known || name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"))
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

#ifdef STRATA_TOKENIZER

std::pair<std::vector<std::string>, std::string> read_pieces(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw data_error(
        "{}: expected the Hugging Face folder of a BERT or MiniLM encoder (config.json, model.safetensors, a "
        "tokenizer), found no folder",
        folder.string());
  }
  const Tokenizer tokenizer = Tokenizer::load(folder);
  if (tokenizer.size() > kMostPieces)
    throw data_error("{}: expected a tokenizer of at most {} tokens, got {}", folder.string(), kMostPieces,
                     tokenizer.size());
  WordPieces pieces = tokenizer.word_pieces(folder.string());
  return {std::move(pieces.tokens), std::move(pieces.recipe)};
}

TextEncoder text_encoder(const std::vector<std::string>& words, const std::string& pieces) {
  if (pieces.empty()) return WordVocabulary(words);
  const auto tokenizer =
      std::make_shared<const Tokenizer>(Tokenizer::from_word_pieces({words, pieces}, "the tokenizer of the model"));
  return [tokenizer](std::string_view text) {
    std::vector<Token> tokens;
    for (const int32_t id : tokenizer->encode(text, /*special=*/false).ids)
      tokens.push_back(static_cast<Token>(kUnknownWord + 1 + id));
    return tokens;
  };
}

#else

namespace {

[[noreturn]] void refuse() {
  throw usage_error("tokens: this build reads no word pieces, because ICU was not found; use --tokens words");
}

}  // namespace

std::pair<std::vector<std::string>, std::string> read_pieces(const fs::path&) { refuse(); }

TextEncoder text_encoder(const std::vector<std::string>& words, const std::string& pieces) {
  if (pieces.empty()) return WordVocabulary(words);
  refuse();
}

#endif

}  // namespace strata
