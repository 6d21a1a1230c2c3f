#include "data/task.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "data/captions.h"
#include "data/cifar10.h"
#include "data/listops.h"
#include "data/pieces.h"
#include "util/error.h"
#include "util/random.h"
#include "util/text.h"

namespace strata {

void Dataset::add_row(std::span<const Token> row, int32_t label, int64_t length) {
  const bool longer = static_cast<int64_t>(row.size()) > length;
  if (longer) row = row.first(static_cast<size_t>(length));
  cut += longer ? 1 : 0;
  rows.push_back({static_cast<int64_t>(tokens.size()), static_cast<int32_t>(row.size()), label, longer});
  tokens.insert(tokens.end(), row.begin(), row.end());
}

void Dataset::add_problem(std::string problem) {
  constexpr size_t kShown = 5;
  ++bad;
  if (problems.size() < kShown) problems.push_back(std::move(problem));
}

const std::vector<Task>& tasks() {
  static const std::vector<Task> all = {
      {"listops", "the value of nested MIN, MAX, MED and SM lists", "made: strata data make listops", Goal::kClassify,
       64, "brackets", load_listops},
      {"imdb", "film reviews as bytes: liked or not", "strata data get imdb, or --data FOLDER", Goal::kClassify, 1024,
       "text", load_imdb},
      {"cifar10", "grey images pixel by pixel: ten classes", "strata data get cifar10, or --data FOLDER",
       Goal::kClassify, 1024, "quadtree", load_cifar10, /*has_answers=*/false, /*has_images=*/true},
      {"captions", "grey images with a caption: does it tell the truth", "strata data get cifar10, or --data FOLDER",
       Goal::kClassify, captions_length(16), "captioned", load_captions, /*has_answers=*/false, /*has_images=*/true},
      {"text", "the next byte of any text", "--data FILE", Goal::kNextToken, 256, "balanced", load_text},
      {"recall", "the digit that followed a key earlier in the text", "made when it is read", Goal::kNextToken, 256,
       "balanced", load_recall, /*has_answers=*/true},
      {"table", "your own texts with labels: CSV, TSV or JSON lines", "--data FILE", Goal::kClassify, 256, "text",
       load_table},
  };
  return all;
}

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const Task& task : tasks()) names.emplace_back(task.name);
  return names;
}

std::string set_of(const std::string& task) { return task == "captions" ? "cifar10" : task; }

const Task& find_task(const std::string& name) {
  for (const Task& task : tasks()) {
    if (name == task.name) return task;
  }
  const std::vector<std::string> names = task_names();
  throw usage_error("task: expected one of {}, got {}{}", fmt::join(names, ", "), name, suggestion(name, names));
}

std::vector<Token> byte_tokens(std::string_view bytes) {
  std::vector<Token> tokens(bytes.size());
  std::transform(bytes.begin(), bytes.end(), tokens.begin(),
                 [](char c) { return static_cast<Token>(1 + static_cast<uint8_t>(c)); });
  return tokens;
}

fs::path find_split(const fs::path& folder, const std::string& split, const std::vector<std::string>& extensions) {
  for (const std::string& extension : extensions) {
    for (const char* packed : {"", ".zst", ".xz", ".gz", ".bz2"}) {
      fs::path path = folder / (split + extension + packed);
      if (fs::exists(path)) return path;
    }
  }
  return {};
}

namespace {

void count_cut(Dataset& data) {
  data.cut = std::count_if(data.rows.begin(), data.rows.end(), [](const Dataset::Row& row) { return row.cut; });
}

}  // namespace

Dataset take_rows(Dataset& from, int64_t count, uint64_t seed) {
  const std::vector<int64_t> order = permutation(from.size(), mix(seed));
  std::vector<bool> chosen(from.size(), false);
  for (int64_t i = 0; i < std::min(count, from.size()); ++i) chosen[order[i]] = true;
  Dataset taken;
  taken.answers = from.answers;
  taken.answer_step = from.answer_step;
  std::vector<Dataset::Row> kept;
  for (int64_t i = 0; i < from.size(); ++i) {
    if (chosen[i]) {
      taken.add_row(from.row(i), from.rows[i].label, from.rows[i].length);
      taken.rows.back().cut = from.rows[i].cut;
    } else {
      kept.push_back(from.rows[i]);
    }
  }
  from.rows = std::move(kept);
  for (Dataset* part : {&from, &taken}) count_cut(*part);
  return taken;
}

void cut_test_split(TaskData& data, uint64_t seed) {
  data.test = take_rows(data.train, data.train.size() / 10, mix(seed) + 1);
}

namespace {

void keep_rows(Dataset& data, int64_t rows) {
  if (rows <= 0 || rows >= data.size()) return;
  data.rows.resize(rows);
  count_cut(data);
}

void cut_valid_split(TaskData& data, const DataConfig& config) {
  if (!data.valid.rows.empty() || data.valid.bad > 0) return;
  const int64_t rows = data.train.size(), share = static_cast<int64_t>(config.valid_share * static_cast<double>(rows));
  const int64_t wanted = config.valid_rows > 0 ? config.valid_rows : share;
  data.valid = take_rows(data.train, std::min(wanted, rows / 2), static_cast<uint64_t>(config.data_seed));
}

// All rows become test rows.
void join_splits(TaskData& data) {
  Dataset all;
  all.answers = data.test.answers;
  all.answer_step = data.test.answer_step;
  for (const Dataset* split : {&data.train, &data.valid, &data.test}) {
    const auto offset = static_cast<int64_t>(all.tokens.size());
    all.tokens.insert(all.tokens.end(), split->tokens.begin(), split->tokens.end());
    for (Dataset::Row row : split->rows) {
      row.begin += offset;
      all.rows.push_back(row);
    }
    for (const std::string& problem : split->problems) all.add_problem(problem);
    all.bad += split->bad - static_cast<int64_t>(split->problems.size());
  }
  count_cut(all);
  data.train = data.valid = {};
  data.test = std::move(all);
}

// No split without rows; a validation split may be missing.
void check_splits(const TaskData& data, bool whole) {
  for (const auto& [name, split] :
       {std::pair{"training", &data.train}, {"validation", &data.valid}, {"test", &data.test}}) {
    if (!split->rows.empty() || (split == &data.valid && split->bad == 0) || (whole && split != &data.test)) continue;
    throw data_error("{}: no usable {}rows{}", data.task, whole ? "" : std::string(name) + " ",
                     split->problems.empty() ? "" : ", for example " + split->problems.front());
  }
}

// Whether the task, the tokens and the embeddings go together.
void check_tokens(const DataConfig& config) {
  const bool pieces = config.tokens == "pieces";
  if (config.tokens != "bytes" && config.task != "imdb" && config.task != "table")
    throw usage_error("tokens: only the texts of imdb and table can be read as {}; use --tokens bytes for the task {}",
                      config.tokens, config.task);
  if (pieces && config.embeddings.empty() && config.pieces.empty())
    throw usage_error(
        "embeddings: --tokens pieces needs the Hugging Face folder of a BERT or MiniLM encoder; pass it with "
        "--embeddings");
  if (!pieces && !config.embeddings.empty())
    throw usage_error("embeddings: expected --tokens pieces beside --embeddings, got --tokens {}", config.tokens);
}

// The vocabulary: that of a model if given, else of the embeddings' folder, or of the training rows.
void choose_words(TaskData& data, const DataConfig& config, const std::vector<std::string>& words) {
  if (config.tokens == "words") {
    data.words = words.empty() ? common_words(data.train, config.words) : words;
  } else if (!config.pieces.empty()) {
    data.words = words;
    data.pieces = config.pieces;
  } else {
    std::tie(data.words, data.pieces) = read_pieces(config.embeddings);
    for (fs::path& file : embedding_files(config.embeddings)) data.files.push_back(std::move(file));
  }
}

}  // namespace

TaskData load_task(const DataConfig& given, const std::vector<std::string>& words, bool whole) {
  const Task& task = find_task(given.task);
  DataConfig config = given;
  if (config.length == 0) config.length = given.task == "captions" ? captions_length(given.image_side) : task.length;
  const bool as_words = config.tokens != "bytes";
  check_tokens(config);
  const int64_t length = config.length;
  if (as_words) config.length = std::numeric_limits<int32_t>::max();  // rows are cut as words, not as bytes
  TaskData data = task.load(config);
  data.task = task.name;
  data.goal = task.goal;
  data.length = length;
  if (whole) {
    join_splits(data);
  } else {
    cut_valid_split(data, config);
  }
  if (as_words) {
    choose_words(data, config, words);
    const TextEncoder encode = text_encoder(data.words, data.pieces);
    for (Dataset* split : {&data.train, &data.valid, &data.test}) *split = to_words(*split, encode, length);
    data.vocabulary = kUnknownWord + 1 + static_cast<int64_t>(data.words.size());
  }
  keep_rows(data.train, config.train_rows);
  keep_rows(data.valid, config.valid_rows);
  keep_rows(data.test, config.test_rows);
  check_splits(data, whole);
  return data;
}

std::vector<std::string> describe_problems(const TaskData& data) {
  std::vector<std::string> problems;
  const std::pair<const char*, const Dataset*> splits[] = {
      {"training", &data.train}, {"validation", &data.valid}, {"test", &data.test}};
  for (const auto& [name, split] : splits) {
    if (split->bad == 0) continue;
    problems.push_back(
        fmt::format("{} unusable {} rows were left out, for example: {}", split->bad, name, split->problems.front()));
  }
  return problems;
}

std::vector<Token> encode_input(const std::string& task, const std::string& input, int64_t length,
                                const TextEncoder& encode) {
  std::vector<Token> tokens;
  if (task == "listops") {
    std::string unknown;
    tokens = listops_tokens(input, &unknown);
    if (!unknown.empty()) {
      throw data_error("input: unknown word \"{}\"; expected digits, [MIN [MAX [MED [SM and ], separated by spaces",
                       shown(unknown));
    }
    if (!evaluate_listops(tokens))
      throw data_error("input: expected one well-formed expression such as [MAX 2 [MIN 4 7 ] 0 ]");
    if (static_cast<int64_t>(tokens.size()) > length) {
      throw data_error("input: expected at most {1} tokens, which is what the model reads, got {0}", tokens.size(),
                       length);
    }
  } else if (task == "cifar10") {
    if (static_cast<int64_t>(input.size()) != length)
      throw data_error("input: expected an image of {0} x {0} grey bytes, got {1} bytes", cifar10_side(length),
                       input.size());
    tokens = byte_tokens(input);
  } else if (task == "captions") {
    tokens = encode_captioned(input, captions_side(length));
  } else if (encode) {
    tokens = encode(input);
    if (static_cast<int64_t>(tokens.size()) > length) tokens.resize(static_cast<size_t>(length));
  } else {
    tokens = byte_tokens(std::string_view(input).substr(0, static_cast<size_t>(length)));
  }
  if (tokens.empty()) throw data_error("input: expected some text, got nothing");
  return tokens;
}

std::vector<std::string> show_tokens(const std::string& task, std::span<const Token> tokens,
                                     const std::vector<std::string>& words) {
  const bool has_images = find_task(task).has_images;
  std::vector<std::string> shown;
  for (const Token token : tokens) {
    const int byte = token - 1;
    if (task == "listops") {
      shown.emplace_back(listops_word(token));
    } else if (task == "captions" && token >= kByteVocabulary) {
      shown.push_back(caption_word(token));
    } else if (has_images) {
      shown.push_back(std::to_string(byte));
    } else if (!words.empty()) {
      shown.push_back(show_word(words, token));
    } else {
      shown.push_back(byte >= 0x20 && byte < 0x7f ? std::string(1, static_cast<char>(byte))
                      : byte == '\n'              ? "\n"
                                                  : fmt::format("\\x{:02X}", byte));
    }
  }
  return shown;
}

}  // namespace strata
