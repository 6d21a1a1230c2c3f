// ListOps: nested lists of digits under MIN, MAX, MED (median, rounded down) and SM (sum modulo 10), after Nangia and
// Bowman 2018; the grammar and its probabilities are those of the Long Range Arena (Tay et al. 2021).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace strata {

inline constexpr int64_t kListopsVocabulary = 16;  // padding, ten digits, four operators, the closing bracket

struct ListopsOptions {
  int64_t rows = 0;
  int64_t min_length = 16, max_length = 64;  // tokens, brackets and operators included
  int64_t max_depth = 4, max_args = 5;
  uint64_t seed = 1;
};

// `rows` different expressions, one a line: "value TAB expression". The same bytes for the same options on every
// machine. A node above max_depth is an operator with probability 1/4, with 2 to max_args arguments; trees outside the
// length limits are discarded. Throws a usage error if there are not enough different expressions.
std::string make_listops(const ListopsOptions& options);

// The tokens of an expression; parentheses are skipped. If a word is unknown, returns no tokens and sets *unknown.
std::vector<Token> listops_tokens(std::string_view expression, std::string* unknown);
std::string_view listops_word(Token token);

// The value of an expression; empty if it is not well formed.
std::optional<int> evaluate_listops(std::span<const Token> tokens);

// Reads "value TAB expression" rows, or the Long Range Arena's "Source TAB Target" files. A row whose value is not the
// value of its expression is bad.
Dataset read_listops(const std::string& text, const std::string& name, int64_t length);

}  // namespace strata
