// A WordPiece tokenizer taken apart; read_tokenizer.cc puts it together again.
#include <nlohmann/json.hpp>

#include "tokenizer/wordpiece.h"
#include "util/error.h"
#include "util/text.h"

namespace strata {

using Json = nlohmann::json;

WordPieces Tokenizer::word_pieces(const std::string& where) const {
  const auto* const model = dynamic_cast<const WordPiece*>(model_.get());
  if (model == nullptr)
    throw data_error("{}: expected a WordPiece tokenizer (BERT, MiniLM), got one of another kind", where);
  const WordPiece::Options& options = model->options();
  if (options.continuation != kContinuation)
    throw data_error("{}: expected word pieces that continue a word to begin with {}, got {}", where, kContinuation,
                     shown(options.continuation));
  WordPieces pieces;
  pieces.tokens = model->vocabulary();
  pieces.tokens.resize(static_cast<size_t>(size()));
  Json added = Json::array();
  for (const SpecialToken& token : special_) {
    if (token.id >= model->size()) pieces.tokens[token.id] = token.text;
    added.push_back({{"id", token.id},
                     {"content", token.text},
                     {"lstrip", token.takes_space_before},
                     {"rstrip", token.takes_space_behind},
                     {"special", !token.is_text}});
  }
  for (const std::string& token : pieces.tokens) {
    if (!is_utf8(token)) throw data_error("{}: expected tokens in UTF-8, got {}", where, shown(token));
  }
  const Json recipe = {{"model",
                        {{"type", "WordPiece"},
                         {"unk_token", options.unknown},
                         {"continuing_subword_prefix", options.continuation},
                         {"max_input_chars_per_word", options.longest_word},
                         {kTokenCount, model->size()}}},
                       {"normalizer",
                        {{"type", "BertNormalizer"},
                         {"clean_text", options.text.clean_text},
                         {"handle_chinese_chars", options.text.chinese_characters},
                         {"strip_accents", options.text.strip_accents},
                         {"lowercase", options.text.lower_case}}},
                       {"added_tokens", std::move(added)}};
  pieces.recipe = recipe.dump();
  return pieces;
}

}  // namespace strata
