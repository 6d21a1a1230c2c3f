// Recall: what followed a key earlier in the text. A row is filler, letters a .. z, in which pairs of a key, A .. Z,
// and a digit are planted. It ends with ?, one of the keys and, as the only target, its digit:
//
//   kdA7hwqoB3mxu..gf?A7
//
// The label of a row says how far before the target the asked digit stands: label n is a distance of 2^(n+2) to
// 2^(n+3) - 1. Distances are drawn so that their logarithms are spread evenly. Training rows may ask for several keys,
// one question after the other, and each answer is a target; rows of the other splits ask for one. Rows are made when
// they are read.
#include <cmath>

#include "data/generate.h"
#include "data/task.h"
#include "util/error.h"
#include "util/random.h"

namespace strata {
namespace {

constexpr int64_t kKeys = 26, kNearest = 4;
constexpr int64_t kQuestion = 3;  // ?, the key, its digit

// The text of one row, of size + 1 bytes, and the distance of the last answer. Key q is asked by question q from the
// end, whose answer stands at size - q * kQuestion.
std::pair<std::string, int64_t> make_row(int64_t size, int64_t pairs, int64_t questions, Random& random) {
  std::string text(static_cast<size_t>(size + 1), ' ');
  for (char& letter : text) letter = static_cast<char>('a' + random.below(26));
  const std::vector<int64_t> keys = permutation(kKeys, random.next());
  const int64_t filler = size + 1 - kQuestion * questions;  // bytes before the questions
  auto place_of_asked = [&](int64_t answer) {
    const auto distance =
        static_cast<int64_t>(kNearest * std::exp(random.unit() * std::log(static_cast<double>(answer) / kNearest)));
    return answer - std::min(distance, answer - 1) - 1;
  };
  auto is_free = [&](int64_t at) { return at + 1 < filler && text[at] >= 'a' && text[at + 1] >= 'a'; };
  int64_t distance = 0;
  for (int64_t key = 0; key < pairs; ++key) {
    const bool asked = key < questions;
    const int64_t answer = size - kQuestion * key;
    int64_t at = 0;
    do {
      at = asked ? place_of_asked(answer) : random.below(static_cast<uint32_t>(filler - 1));
    } while (!is_free(at));
    text[at] = static_cast<char>('A' + keys[key]);
    text[at + 1] = static_cast<char>('0' + random.below(10));
    if (key == 0) distance = answer - at - 1;
    if (!asked) continue;
    text[answer - 2] = '?';
    text[answer - 1] = text[at];
    text[answer] = text[at + 1];
  }
  return {text, distance};
}

Dataset make_rows(int64_t count, int64_t size, int64_t pairs, int64_t questions, uint64_t seed) {
  Dataset data;
  data.answers = questions;
  data.answer_step = kQuestion;
  Random random(seed);
  for (int64_t row = 0; row < count; ++row) {
    const auto [text, distance] = make_row(size, pairs, questions, random);
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
  if (config.questions > config.pairs)
    throw usage_error("questions: expected at most {}, one for each of --pairs, got {}", config.pairs,
                      config.questions);
  // Free places are found by trying: at most a quarter of the row is pairs.
  const int64_t shortest = 8 * config.pairs + kQuestion * config.questions + 5;
  if (config.length < shortest)
    throw usage_error("length: expected {} or more for --pairs {} and --questions {}, got {}", shortest, config.pairs,
                      config.questions, config.length);
  TaskData data;
  data.vocabulary = kByteVocabulary;
  for (int64_t from = kNearest; from < config.length; from *= 2)
    data.labels.push_back(fmt::format("{}-{}", from, std::min(2 * from, config.length) - 1));
  const auto seed = static_cast<uint64_t>(config.data_seed);
  auto rows = [&](int64_t count, int64_t otherwise, int64_t questions, uint64_t split) {
    return make_rows(rows_or(count, otherwise), config.length, config.pairs, questions, mix(mix(seed) + split));
  };
  data.train = rows(config.train_rows, kTrainRows, config.questions, 0);
  data.valid = rows(config.valid_rows, kHeldOutRows, 1, 1);
  data.test = rows(config.test_rows, kHeldOutRows, 1, 2);
  return data;
}

}  // namespace strata
