// Recall: what followed a key earlier in the text. A row is filler, letters a .. z, in which pairs of a key, A .. Z,
// and a digit are planted. It ends with ?, one of the keys and, as the only target, its digit:
//
//   kdA7hwqoB3mxu..gf?A7
//
// The label of a row says how far before the target the asked digit stands: label n is a distance of 2^(n+2) to
// 2^(n+3) - 1. Distances are drawn so that their logarithms are spread evenly. Rows are made when they are read.
#include <cmath>

#include "data/generate.h"
#include "data/task.h"
#include "util/error.h"
#include "util/random.h"

namespace strata {
namespace {

constexpr int64_t kKeys = 26, kNearest = 4;
constexpr int64_t kEnd = 3;  // ?, the key, its digit

// The text of one row, of size + 1 bytes, and the distance.
std::pair<std::string, int64_t> make_row(int64_t size, int64_t pairs, Random& random) {
  std::string text(static_cast<size_t>(size + 1), ' ');
  for (char& letter : text) letter = static_cast<char>('a' + random.below(26));
  const std::vector<int64_t> keys = permutation(kKeys, random.next());
  const auto farthest = static_cast<double>(size - 1);
  const auto distance = static_cast<int64_t>(kNearest * std::exp(random.unit() * std::log((farthest + 1) / kNearest)));
  const int64_t asked = size - std::min(distance, size - 1) - 1;  // where the asked key stands
  auto plant = [&](int64_t at, int64_t key) {
    text[at] = static_cast<char>('A' + keys[key]);
    text[at + 1] = static_cast<char>('0' + random.below(10));
  };
  plant(asked, 0);
  for (int64_t key = 1; key < pairs; ++key) {
    int64_t at = asked;
    auto is_free = [&](int64_t place) { return text[place] >= 'a' && text[place + 1] >= 'a'; };
    while (!is_free(at)) at = random.below(static_cast<uint32_t>(size - kEnd));
    plant(at, key);
  }
  text[size - 2] = '?';
  text[size - 1] = text[asked];
  text[size] = text[asked + 1];
  return {text, size - asked - 1};
}

Dataset make_rows(int64_t count, int64_t size, int64_t pairs, uint64_t seed) {
  Dataset data;
  data.answers = 1;
  Random random(seed);
  for (int64_t row = 0; row < count; ++row) {
    const auto [text, distance] = make_row(size, pairs, random);
    int32_t label = 0;
    while (kNearest << (label + 1) <= distance) ++label;
    data.add_row(byte_tokens(text), label, size + 1);
  }
  return data;
}

}  // namespace

TaskData load_recall(const DataConfig& config) {
  if (!config.data.empty())
    throw usage_error("data: expected none for the task recall, whose rows are generated, got {}", config.data);
  // Free places are found by trying: at most a quarter of the row is pairs.
  if (config.length < 8 * config.pairs + 8)
    throw usage_error("length: expected {} or more for {} pairs, got {}; use --pairs for fewer", 8 * config.pairs + 8,
                      config.pairs, config.length);
  TaskData data;
  data.vocabulary = kByteVocabulary;
  for (int64_t from = kNearest; from < config.length; from *= 2)
    data.labels.push_back(fmt::format("{}-{}", from, std::min(2 * from, config.length) - 1));
  const auto seed = static_cast<uint64_t>(config.data_seed);
  const std::tuple<Dataset*, int64_t, int64_t> splits[] = {{&data.train, config.train_rows, kTrainRows},
                                                           {&data.valid, config.valid_rows, kHeldOutRows},
                                                           {&data.test, config.test_rows, kHeldOutRows}};
  for (uint64_t split = 0; const auto& [set, rows, otherwise] : splits)
    *set = make_rows(rows_or(rows, otherwise), config.length, config.pairs, mix(mix(seed) + split++));
  return data;
}

}  // namespace strata
