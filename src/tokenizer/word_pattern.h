// How byte-level BPE splits a text into words before it merges bytes: the patterns of model families, by hand.
#pragma once

#include <cstdint>
#include <string_view>

namespace strata {

enum class WordPattern {
  kGpt2,    // of GPT-2 and RoBERTa
  kLlama3,  // of Llama 3: numbers in groups of three digits
  kQwen2,   // of Qwen2: digits one by one
};

// The pattern that this regular expression is; false: none that is known.
bool find_word_pattern(std::string_view expression, WordPattern& pattern);

// The end of the word that starts at `at`.
int64_t word_end(std::string_view text, int64_t at, WordPattern pattern);

}  // namespace strata
