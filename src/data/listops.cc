#include "data/listops.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>

#include "util/error.h"
#include "util/lines.h"
#include "util/random.h"
#include "util/text.h"

namespace strata {
namespace {

constexpr Token kFirstDigit = 1, kFirstOperator = 11, kClose = 15;
constexpr std::array<std::string_view, 16> kWords = {"",  "0", "1", "2",    "3",    "4",    "5",   "6",
                                                     "7", "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]"};

// A list under evaluation: how often each digit occurred.
struct List {
  Token operation = 0;
  int size = 0;
  std::array<int, 10> count = {};

  void add(int digit) {
    ++size;
    ++count[digit];
  }
  int nth(int rank) const {  // the digit of this rank, from the smallest
    int digit = 0;
    for (int seen = count[0]; seen <= rank; seen += count[digit]) ++digit;
    return digit;
  }
  int value() const {
    switch (operation - kFirstOperator) {
      case 0:
        return nth(0);
      case 1:
        return nth(size - 1);
      case 2:
        return (nth((size - 1) / 2) + nth(size / 2)) / 2;
      default: {
        int sum = 0;
        for (int digit = 1; digit < 10; ++digit) sum += digit * count[digit];
        return sum % 10;
      }
    }
  }
};

// FNV-1a, 64 bits; the standard library's hash differs from machine to machine.
uint64_t fingerprint(const std::vector<Token>& tokens) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const Token token : tokens) hash = (hash ^ token) * 0x100000001b3ULL;
  return hash;
}

// "value TAB words NEWLINE". Every word is stored as eight bytes at once; the next word overwrites the excess.
void append_row(std::string& lines, int value, const std::vector<Token>& tokens) {
  constexpr size_t kStored = 8;
  static const std::array<std::array<char, kStored>, kWords.size()> stored = [] {
    std::array<std::array<char, kStored>, kWords.size()> made{};
    for (size_t word = 0; word < kWords.size(); ++word)
      std::copy(kWords[word].begin(), kWords[word].end(), made[word].begin());
    return made;
  }();
  const size_t begin = lines.size();
  lines.resize(begin + 2 + kStored * tokens.size() + kStored);
  char* at = lines.data() + begin;
  *at++ = static_cast<char>('0' + value);
  *at++ = '\t';
  for (const Token token : tokens) {
    std::memcpy(at, stored[token].data(), kStored);
    at += kWords[token].size();
    *at++ = ' ';
  }
  at[-1] = '\n';  // in place of the last space
  lines.resize(static_cast<size_t>(at - lines.data()));
}

class Generator {
 public:
  explicit Generator(const ListopsOptions& options) : options_(options), random_(options.seed) {}

  // Draws one tree into `tokens`; returns false if its length is outside the limits.
  bool draw(std::vector<Token>& tokens) {
    tokens.clear();
    open_.clear();
    int64_t pending = 1;  // arguments and closing brackets still to come
    do {
      const uint64_t bits = random_.next();
      const auto depth = static_cast<int64_t>(open_.size()) + 1;
      --pending;
      if ((bits >> 62) == 0 && depth < options_.max_depth) {  // an operator, one time in four
        tokens.push_back(static_cast<Token>(kFirstOperator + random_.below(4)));
        open_.push_back(2 + static_cast<int>(random_.below(static_cast<uint32_t>(options_.max_args - 1))));
        pending += open_.back() + 1;
      } else {
        tokens.push_back(static_cast<Token>(kFirstDigit + (((bits & 0xffffffffU) * 10) >> 32)));
        while (!open_.empty() && --open_.back() == 0) {  // it ends its list, which may end the enclosing list
          tokens.push_back(kClose);
          --pending;
          open_.pop_back();
        }
      }
      // Everything pending takes at least one token: a tree that must become too long is abandoned early.
      if (static_cast<int64_t>(tokens.size()) + pending > options_.max_length) return false;
    } while (!open_.empty());
    return static_cast<int64_t>(tokens.size()) >= options_.min_length;
  }

 private:
  ListopsOptions options_;
  Random random_;
  std::vector<int> open_;  // of every open list, the arguments still to come
};

}  // namespace

std::string_view listops_word(Token token) { return token < kWords.size() ? kWords[token] : "?"; }

std::string make_listops(const ListopsOptions& o) {
  if (o.max_args < 2 || o.max_depth < 1 || o.min_length > o.max_length) {
    throw usage_error(
        "listops: expected max_args of 2 or more, max_depth of 1 or more and min_length <= length, got {}, {}, {} and "
        "{}",
        o.max_args, o.max_depth, o.min_length, o.max_length);
  }
  constexpr int64_t kPatience = 20'000'000;  // draws in a row that give nothing new
  Generator generator(o);
  std::unordered_set<uint64_t> seen;
  std::string lines;
  std::vector<Token> tokens;
  int64_t rows = 0, fruitless = 0;
  while (rows < o.rows) {
    if (generator.draw(tokens) && seen.insert(fingerprint(tokens)).second) {
      append_row(lines, *evaluate_listops(tokens), tokens);
      ++rows;
      fruitless = 0;
    } else if (++fruitless == kPatience) {
      throw usage_error(
          "listops: expected {} different expressions of {} to {} tokens, depth {} and {} arguments, found only {}; "
          "request fewer rows or wider limits",
          o.rows, o.min_length, o.max_length, o.max_depth, o.max_args, rows);
    }
  }
  return lines;
}

std::vector<Token> listops_tokens(std::string_view expression, std::string* unknown) {
  std::vector<Token> tokens;
  for (size_t at = 0; at < expression.size();) {
    if (expression[at] == ' ') {
      ++at;
      continue;
    }
    const size_t end = std::min(expression.find(' ', at), expression.size());
    const std::string_view word = expression.substr(at, end - at);
    at = end;
    if (word == "(" || word == ")") continue;
    const auto* found = std::find(kWords.begin() + 1, kWords.end(), word);
    if (found == kWords.end()) {
      *unknown = std::string(word);
      return {};
    }
    tokens.push_back(static_cast<Token>(found - kWords.begin()));
  }
  return tokens;
}

std::optional<int> evaluate_listops(std::span<const Token> tokens) {
  std::vector<List> open(1);  // the outermost holds the one value of the whole
  for (const Token token : tokens) {
    if (open.front().size > 0) return std::nullopt;
    if (token >= kFirstDigit && token < kFirstOperator) {
      open.back().add(token - kFirstDigit);
    } else if (token >= kFirstOperator && token < kClose) {
      open.emplace_back();
      open.back().operation = token;
    } else if (token == kClose && open.size() > 1 && open.back().size > 0) {
      const int value = open.back().value();
      open.pop_back();
      open.back().add(value);
    } else {
      return std::nullopt;
    }
  }
  if (open.size() != 1 || open.front().size != 1) return std::nullopt;
  return open.front().nth(0);
}

Dataset read_listops(const std::string& text, const std::string& name, int64_t length) {
  Dataset data;
  bool value_first = true;
  for_each_line(text, [&](std::string_view line, int64_t number) {
    if (number == 1 && line == "Source\tTarget") {
      value_first = false;
      return;
    }
    const size_t tab = line.find('\t');
    auto bad = [&](const std::string& why) { data.add_problem(fmt::format("{} line {}: {}", name, number, why)); };
    if (tab == std::string_view::npos) return bad("expected a value, a tab and an expression");
    const std::string_view value = value_first ? line.substr(0, tab) : line.substr(tab + 1);
    const std::string_view expression = value_first ? line.substr(tab + 1) : line.substr(0, tab);
    if (value.size() != 1 || value[0] < '0' || value[0] > '9') {
      return bad(fmt::format("expected a value of 0 to 9, got \"{}\"", shown(value)));
    }
    std::string unknown;
    const std::vector<Token> tokens = listops_tokens(expression, &unknown);
    if (!unknown.empty()) return bad(fmt::format("unknown word \"{}\"", shown(unknown)));
    const std::optional<int> true_value = evaluate_listops(tokens);
    if (!true_value) return bad("the expression is not well formed");
    if (*true_value != value[0] - '0') return bad(fmt::format("its value is {}, not {}", *true_value, value));
    if (static_cast<int64_t>(tokens.size()) > length) {  // a part of an expression has no value
      return bad(fmt::format("expected at most {1} tokens, got {0}; raise --length", tokens.size(), length));
    }
    data.add_row(tokens, *true_value, length);
  });
  return data;
}

}  // namespace strata
