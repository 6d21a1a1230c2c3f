// ListOps: what the generator makes, and the values of expressions.
#include "data/listops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "data/support.h"

namespace strata {
namespace {

struct Line {
  int value;
  std::string expression;
  std::vector<std::string> words;
};

std::vector<Line> lines_of(const std::string& text) {
  std::vector<Line> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    Line made{line.at(0) - '0', line.substr(2), {}};
    std::istringstream words(made.expression);
    for (std::string word; words >> word;) made.words.push_back(word);
    lines.push_back(std::move(made));
  }
  return lines;
}

// A second evaluator, by recursion over the words and with a sort for the median: nothing shared with the first.
int plain_value(const std::vector<std::string>& words, size_t& at) {
  const std::string word = words.at(at++);
  if (word[0] != '[') return std::stoi(word);
  std::vector<int> values;
  while (words.at(at) != "]") values.push_back(plain_value(words, at));
  ++at;
  std::sort(values.begin(), values.end());
  if (word == "[MIN") return values.front();
  if (word == "[MAX") return values.back();
  if (word == "[SM") return std::accumulate(values.begin(), values.end(), 0) % 10;
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::optional<int> value_of(const std::string& expression) {
  std::string unknown;
  const std::vector<Token> tokens = listops_tokens(expression, &unknown);
  EXPECT_EQ(unknown, "") << expression;
  return evaluate_listops(tokens);
}

// ------------------------------------------------------------------------------------------------- generator

TEST(ListopsGenerator, SameBytesEverywhere) {
  EXPECT_EQ(crc32_of(make_listops({.rows = 24000, .max_depth = 4, .max_args = 5, .seed = 1})), 0x69c13a40U);
  const ListopsOptions small = {
      .rows = 100, .min_length = 4, .max_length = 32, .max_depth = 3, .max_args = 4, .seed = 7};
  EXPECT_EQ(crc32_of(make_listops(small)), 0xcc376f06U);
  ListopsOptions other = small;
  other.seed = 8;
  EXPECT_NE(make_listops(other), make_listops(small));
}

TEST(ListopsGenerator, FewerRowsAreTheBeginningOfMore) {
  ListopsOptions options = {.rows = 50, .seed = 3};
  const std::string few = make_listops(options);
  options.rows = 80;
  EXPECT_EQ(make_listops(options).substr(0, few.size()), few);
  options.rows = 0;
  EXPECT_EQ(make_listops(options), "");
}

TEST(ListopsGenerator, RowsAreDistinctAndWithinTheLimits) {
  for (const ListopsOptions& o :
       {ListopsOptions{.rows = 3000},
        {.rows = 3000, .min_length = 30, .max_length = 31, .max_depth = 3, .max_args = 10},
        {.rows = 500, .min_length = 100, .max_length = 200, .max_depth = 10, .max_args = 3}}) {
    std::set<std::string> seen;
    int64_t deepest = 0, most = 0, shortest = o.max_length, longest = 0;
    for (const Line& line : lines_of(make_listops(o))) {
      EXPECT_TRUE(seen.insert(line.expression).second) << line.expression;
      std::vector<int64_t> arguments;  // of every open list
      for (const std::string& word : line.words) {
        if (word == "]") {
          EXPECT_GE(arguments.back(), 2) << line.expression;
          most = std::max(most, arguments.back());
          arguments.pop_back();
          continue;
        }
        if (!arguments.empty()) ++arguments.back();
        deepest = std::max(deepest, static_cast<int64_t>(arguments.size()) + 1);
        if (word[0] == '[') arguments.push_back(0);
      }
      shortest = std::min(shortest, static_cast<int64_t>(line.words.size()));
      longest = std::max(longest, static_cast<int64_t>(line.words.size()));
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), o.rows);
    EXPECT_GE(shortest, o.min_length);
    EXPECT_LE(longest, o.max_length);
    EXPECT_EQ(deepest, o.max_depth);  // reached, and not passed
    EXPECT_EQ(most, o.max_args);
  }
}

TEST(ListopsGenerator, ValuesAgreeWithAnotherEvaluator) {
  const std::vector<Line> lines = lines_of(
      make_listops({.rows = 2000, .min_length = 5, .max_length = 200, .max_depth = 8, .max_args = 8, .seed = 5}));
  ASSERT_EQ(lines.size(), 2000U);
  for (const Line& line : lines) {
    size_t at = 0;
    EXPECT_EQ(line.value, plain_value(line.words, at)) << line.expression;
    EXPECT_EQ(at, line.words.size()) << line.expression;
    EXPECT_EQ(value_of(line.expression), line.value) << line.expression;
  }
}

// The seeds are fixed, so the bounds can be tight: digits and operators are uniform, and every value occurs.
TEST(ListopsGenerator, WordsAreUniform) {
  std::map<std::string, double> count;
  std::map<int, double> values;
  double digits = 0, operators = 0;
  for (const Line& line : lines_of(make_listops({.rows = 10000}))) {
    ++values[line.value];
    for (const std::string& word : line.words) {
      if (word == "]") continue;
      ++count[word];
      ++(word[0] == '[' ? operators : digits);
    }
  }
  EXPECT_EQ(count.size(), 14U);
  for (const auto& [word, times] : count) {
    EXPECT_NEAR(times / (word[0] == '[' ? operators : digits), word[0] == '[' ? 0.25 : 0.1, 0.01) << word;
  }
  EXPECT_EQ(values.size(), 10U);
  for (const auto& [value, times] : values) EXPECT_GT(times / 10000, 0.05) << value;
}

// Without length limits nothing is discarded, so the probabilities of the grammar hold below the root: one argument in
// four is a list, and the number of arguments is uniform.
TEST(ListopsGenerator, TheGrammarsProbabilities) {
  double lists = 0, arguments = 0;
  std::map<int, double> sizes;
  const int max_args = 10;
  for (const Line& line : lines_of(
           make_listops({.rows = 5000, .min_length = 2, .max_length = 10000, .max_depth = 3, .max_args = max_args}))) {
    int depth = 0, size = 0;
    for (const std::string& word : line.words) {
      if (word == "]") {
        --depth;
        continue;
      }
      if (depth == 1) ++size, ++arguments, lists += word[0] == '[';
      depth += word[0] == '[';
    }
    ++sizes[size];
  }
  EXPECT_NEAR(lists / arguments, 0.25, 0.01);
  EXPECT_EQ(sizes.begin()->first, 2);
  EXPECT_EQ(sizes.rbegin()->first, max_args);
  for (const auto& [size, times] : sizes) EXPECT_NEAR(times / 5000, 1.0 / (max_args - 1), 0.025) << size;
}

// Ten digits and four operators over a hundred pairs: all of a small language is found, and not one row more.
TEST(ListopsGenerator, FindsEveryExpressionThenRefuses) {
  ListopsOptions options = {.rows = 410, .min_length = 1, .max_length = 4, .max_depth = 2, .max_args = 2};
  int single = 0;
  for (const Line& line : lines_of(make_listops(options))) single += line.words.size() == 1;
  EXPECT_EQ(single, 10);
  options.rows = 411;
  EXPECT_EQ(
      error_of(ExitCode::kUsage, [&] { make_listops(options); }),
      "listops: expected 411 different expressions of 1 to 4 tokens, depth 2 and 2 arguments, found only 410; request "
      "fewer rows or wider limits");
}

TEST(ListopsGenerator, BadOptions) {
  for (const ListopsOptions& o : {ListopsOptions{.rows = 1, .max_args = 1},
                                  {.rows = 1, .max_depth = 0},
                                  {.rows = 1, .min_length = 65, .max_length = 64}}) {
    EXPECT_SAYS(error_of(ExitCode::kUsage, [&] { make_listops(o); }), "expected max_args of 2 or more");
  }
}

// ------------------------------------------------------------------------------------------------- values

TEST(ListopsValue, Operators) {
  EXPECT_EQ(value_of("7"), 7);
  EXPECT_EQ(value_of("[MIN 4 2 9 ]"), 2);
  EXPECT_EQ(value_of("[MAX 4 2 9 ]"), 9);
  EXPECT_EQ(value_of("[MAX 0 0 ]"), 0);
  EXPECT_EQ(value_of("[MED 1 9 3 ]"), 3);
  EXPECT_EQ(value_of("[MED 2 3 ]"), 2);      // the mean of an even number is rounded down
  EXPECT_EQ(value_of("[MED 9 0 8 1 ]"), 4);  // of 1 and 8
  EXPECT_EQ(value_of("[MED 5 5 5 0 ]"), 5);
  EXPECT_EQ(value_of("[SM 9 9 9 ]"), 7);
  EXPECT_EQ(value_of("[SM 5 5 ]"), 0);
  EXPECT_EQ(value_of("[MED 6 ]"), 6);
}

TEST(ListopsValue, Nested) {
  EXPECT_EQ(value_of("[MAX 2 9 [MIN 4 7 ] 0 ]"), 9);
  EXPECT_EQ(value_of("[SM [SM 9 9 ] [MED 1 2 [MAX 8 7 ] ] ]"), 0);
  EXPECT_EQ(value_of("( ( [MIN 4 ) ( ( [MAX 1 ) 3 ) ] ) ]"), 3);  // parentheses have no meaning
  std::string deep;
  for (int i = 0; i < 50000; ++i) deep += "[SM 1 ";
  deep += "0 ";
  for (int i = 0; i < 50000; ++i) deep += "] ";
  EXPECT_EQ(value_of(deep), 0);  // no recursion, so no stack overflow
}

TEST(ListopsValue, Malformed) {
  for (const char* expression : {"", "( )", "]", "[MAX", "[MAX 1", "[MAX ]", "[MAX 1 ] ]", "1 2", "[MAX 1 2 ] 3",
                                 "3 [MAX 1 2 ]", "[MAX 1 [MIN ] 2 ]", "[MAX 1 ] [MIN 2 ]"}) {
    EXPECT_EQ(value_of(expression), std::nullopt) << expression;
  }
  const Token padded[] = {1, kPad};
  EXPECT_EQ(evaluate_listops(padded), std::nullopt);
  const Token unknown[] = {16};
  EXPECT_EQ(evaluate_listops(unknown), std::nullopt);
}

TEST(ListopsValue, Words) {
  std::string unknown;
  const std::vector<Token> tokens = listops_tokens("( [MED  0 9 ) ] ", &unknown);
  EXPECT_EQ(tokens, (std::vector<Token>{13, 1, 10, 15}));
  std::string words;
  for (const Token token : tokens) words.append(listops_word(token)).append(" ");
  EXPECT_EQ(words, "[MED 0 9 ] ");
  EXPECT_EQ(listops_word(99), "?");
  EXPECT_TRUE(listops_tokens("[MAX 1 10 ]", &unknown).empty());
  EXPECT_EQ(unknown, "10");
}

}  // namespace
}  // namespace strata
