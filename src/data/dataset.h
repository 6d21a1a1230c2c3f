// Rows of tokens with labels: what every task passes to the training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace strata {

using Token = uint16_t;  // 0 is padding; the task defines the others
inline constexpr Token kPad = 0;
inline constexpr int64_t kByteVocabulary = 257;  // token 1 + b is byte b

enum class Goal { kClassify, kNextToken };

// One split of a data set. A row is a range of `tokens`; the windows of a language model share their borders.
struct Dataset {
  struct Row {
    int64_t begin = 0;
    int32_t length = 0;
    int32_t label = 0;
    bool cut = false;  // it was longer
  };
  std::vector<Token> tokens;
  std::vector<Row> rows;

  // Of a language model: only so many tokens of each row are targets, its last one and every answer_step-th before it.
  // 0: all.
  int64_t answers = 0, answer_step = 1;

  // Problems while reading: rows that were too long were cut, bad rows were left out.
  int64_t cut = 0, bad = 0;
  std::vector<std::string> problems;  // the first few bad rows, in words

  std::span<const Token> row(int64_t index) const {
    return {tokens.data() + rows[index].begin, static_cast<size_t>(rows[index].length)};
  }
  int64_t size() const { return static_cast<int64_t>(rows.size()); }

  void add_row(std::span<const Token> row, int32_t label, int64_t length);
  void add_problem(std::string problem);
};

struct TaskData {
  std::string task;
  Goal goal = Goal::kClassify;
  int64_t vocabulary = 0;
  int64_t length = 0;               // tokens of the longest row, at most
  std::vector<std::string> labels;  // names of the classes
  std::vector<std::string> words;   // the vocabulary, where tokens are words (data/words.h) or pieces
  std::string pieces;               // their tokenizer, where tokens are word pieces (data/pieces.h)
  Dataset train, valid, test;
  std::vector<std::filesystem::path> files;  // what was read, folders of many small files as one

  // "all" is the test split of data that was read as a whole.
  const Dataset& split(const std::string& name) const {
    return name == "test" || name == "all" ? test : name == "valid" ? valid : train;
  }
};

}  // namespace strata
