// Texts as word pieces: the tokens of a pretrained encoder's tokenizer, without special tokens around a text. The
// vocabulary has a word for each of its ids, and like any vocabulary of words begins with token 2 (data/words.h).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "data/words.h"
#include "util/file.h"

namespace strata {

inline constexpr int64_t kMostPieces = 65534;  // so that a Token holds all

// The vocabulary of the tokenizer in a Hugging Face folder, and the rest of that tokenizer, as JSON (WordPieces in
// tokenizer/tokenizer.h). Throws data errors, and a usage error where this build has no tokenizers.
std::pair<std::vector<std::string>, std::string> read_pieces(const fs::path& folder);

// The files of such a folder that decide the tokens and their embeddings.
std::vector<fs::path> embedding_files(const fs::path& folder);

// How texts become tokens of these words: whole words, or, with the rest of a tokenizer, pieces. Throws a data error
// if that is none.
TextEncoder text_encoder(const std::vector<std::string>& words, const std::string& pieces);

}  // namespace strata
