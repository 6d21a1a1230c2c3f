// The tasks: what each one is, where its data comes from and how its inputs become tokens.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/config.h"
#include "data/dataset.h"
#include "data/words.h"

namespace strata {

struct Task {
  const char* name;
  const char* summary;
  const char* source;  // where its data comes from
  Goal goal;
  int64_t length;    // tokens per row, unless --length says otherwise
  const char* tree;  // what HSA's tree is made from: see data/trees.h
  TaskData (*load)(const DataConfig& config);
  bool has_answers = false;  // a language model of which only the answers count
  bool has_images = false;   // its inputs hold pixels, one byte each

  // Its score is bits per byte, otherwise accuracy.
  bool is_scored_by_bits() const { return goal == Goal::kNextToken && !has_answers; }
};

const std::vector<Task>& tasks();
std::vector<std::string> task_names();
// The set that a task reads: captions has the images of cifar10.
std::string set_of(const std::string& task);
const Task& find_task(const std::string& name);  // throws a usage error

// Reads (or generates) the three splits, takes a validation split from the training rows if there is none, keeps as
// many rows as requested, and checks that no split is empty. The vocabulary is `words` if given (that of a model),
// otherwise it is made from the training rows. whole: all rows go to the test split. Throws data and usage errors.
TaskData load_task(const DataConfig& config, const std::vector<std::string>& words = {}, bool whole = false);

// A line of text for each split in which rows were left out.
std::vector<std::string> describe_problems(const TaskData& data);

// An input, typed or from a file, as tokens: words of an expression, pixels of an image, a caption, a line end and its
// pixels; a text by `encode` (data/pieces.h), or, if that is empty, its bytes. Longer texts are cut at `length`.
std::vector<Token> encode_input(const std::string& task, const std::string& input, int64_t length,
                                const TextEncoder& encode = {});

// Each token in readable form: a word, a character (\\xHH for other bytes), the value of a pixel.
std::vector<std::string> show_tokens(const std::string& task, std::span<const Token> tokens,
                                     const std::vector<std::string>& words = {});

// ---- for the tasks themselves

// The file of one split in a folder: train.tsv, train.tsv.zst and so on; empty if there is none.
fs::path find_split(const fs::path& folder, const std::string& split, const std::vector<std::string>& extensions);
std::vector<Token> byte_tokens(std::string_view bytes);
// Moves `count` rows, chosen by the seed, out of a split into a new one.
Dataset take_rows(Dataset& from, int64_t count, uint64_t seed);
// For data in a single file: a tenth of it becomes the test split.
void cut_test_split(TaskData& data, uint64_t seed);

TaskData load_listops(const DataConfig& config);
TaskData load_imdb(const DataConfig& config);
TaskData load_cifar10(const DataConfig& config);
TaskData load_captions(const DataConfig& config);
TaskData load_text(const DataConfig& config);
TaskData load_recall(const DataConfig& config);
TaskData load_table(const DataConfig& config);

}  // namespace strata
