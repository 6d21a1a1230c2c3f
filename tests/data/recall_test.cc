// The recall task: the answer stands in the row, as far away as its label says, and is its only target.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "data/loader.h"
#include "data/support.h"
#include "data/task.h"
#include "util/error.h"

namespace strata {
namespace {

DataConfig config(int64_t length, int64_t pairs) {
  DataConfig c;
  c.task = "recall";
  c.length = length;
  c.pairs = pairs;
  c.train_rows = 300;
  c.valid_rows = 20;
  c.test_rows = 50;
  return c;
}

TEST(Recall, TheAnswerStandsWhereTheLabelSays) {
  for (const auto& [length, pairs] : {std::pair{64, 4}, {200, 1}, {216, 26}, {16, 1}}) {
    const TaskData data = load_task(config(length, pairs));
    EXPECT_EQ(data.train.size(), 300);
    std::map<int32_t, int> seen;
    for (int64_t row = 0; row < data.train.size(); ++row) {
      const std::string text = text_of(data.train.row(row));
      ASSERT_EQ(text.size(), static_cast<size_t>(length + 1));
      ASSERT_EQ(text[length - 2], '?') << text;
      const char key = text[length - 1];
      const auto at = static_cast<int64_t>(text.find(key));
      ASSERT_LT(at, length - 2) << text;
      ASSERT_EQ(text.find(key, at + 1), static_cast<size_t>(length - 1)) << "a key stands once before it is asked";
      EXPECT_EQ(text[at + 1], text[length]) << text;
      const int64_t distance = length - (at + 1), label = data.train.rows[row].label;
      EXPECT_GE(distance, int64_t{4} << label) << text;
      EXPECT_LT(distance, int64_t{8} << label) << text;
      ASSERT_LT(label, static_cast<int64_t>(data.labels.size()));
      ++seen[static_cast<int32_t>(label)];
      EXPECT_EQ(std::count_if(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; }), pairs + 1);
    }
    EXPECT_EQ(seen.size(), data.labels.size()) << "every distance comes";
  }
  EXPECT_EQ(load_task(config(64, 4)).labels, (std::vector<std::string>{"4-7", "8-15", "16-31", "32-63"}));
  EXPECT_EQ(load_task(config(100, 4)).labels.back(), "64-99");
}

TEST(Recall, IsAFunctionOfTheSeedAndSplitsDiffer) {
  const TaskData one = load_task(config(64, 4)), two = load_task(config(64, 4));
  EXPECT_EQ(one.train.tokens, two.train.tokens);
  DataConfig other = config(64, 4);
  other.data_seed = 2;
  EXPECT_NE(one.train.tokens, load_task(other).train.tokens);
  EXPECT_NE(text_of(one.train.row(0)), text_of(one.test.row(0)));
}

TEST(Recall, OnlyTheAnswerIsATarget) {
  const TaskData data = load_task(config(64, 4));
  LoaderOptions options;
  options.batch = 7;
  options.goal = Goal::kNextToken;
  const Batch batch = make_batch(data.test, options, 2);
  EXPECT_EQ(batch.width, 64);
  EXPECT_EQ(batch.all_targets, 7);
  for (int64_t r = 0; r < batch.rows; ++r) {
    for (int64_t t = 0; t < 63; ++t) ASSERT_EQ(batch.targets[r * 64 + t], -1);
    EXPECT_EQ(batch.targets[r * 64 + 63], data.test.row(14 + r)[64]);
    EXPECT_EQ(batch.labels[r], data.test.rows[14 + r].label);
  }
}

TEST(Recall, TrainingRowsMayAskForSeveralKeys) {
  DataConfig c = config(100, 6);
  c.questions = 5;
  const TaskData data = load_task(c);
  LoaderOptions options;
  options.batch = 300;
  options.goal = Goal::kNextToken;
  const Batch batch = make_batch(data.train, options, 0);
  EXPECT_EQ(batch.all_targets, 5 * 300);
  for (int64_t row = 0; row < 300; ++row) {
    const std::string text = text_of(data.train.row(row));
    ASSERT_EQ(text.size(), size_t{101});
    std::set<char> asked;
    for (int64_t t = 0; t < 100; ++t) {
      const int64_t target = batch.targets[row * 100 + t];
      const bool answers = t >= 87 && t % 3 == 0;  // 87, 90, .. 99
      ASSERT_EQ(target >= 0, answers) << text << " at " << t;
      if (!answers) continue;
      EXPECT_EQ(target, data.train.row(row)[t + 1]);
      EXPECT_EQ(text[t - 1], '?') << text;
      EXPECT_EQ(text[text.find(text[t]) + 1], text[t + 1]) << text;
      EXPECT_LT(text.find(text[t]), size_t{85}) << text;
      asked.insert(text[t]);
    }
    EXPECT_EQ(asked.size(), size_t{5}) << text;
    const int64_t distance = 100 - (static_cast<int64_t>(text.find(text[99])) + 1), label = batch.labels[row];
    EXPECT_GE(distance, int64_t{4} << label) << text;
    EXPECT_LT(distance, int64_t{8} << label) << text;
  }
  // The other splits ask for one, whatever training asks.
  EXPECT_EQ(data.test.tokens, load_task(config(100, 6)).test.tokens);
  EXPECT_EQ(make_batch(data.test, options, 0).all_targets, 50);
}

TEST(Recall, SaysWhatItCannotMake) {
  EXPECT_THROW(load_task(config(64, 20)), Error) << "pairs need room";
  DataConfig asks = config(100, 4);
  asks.questions = 5;
  EXPECT_THROW(load_task(asks), Error) << "a question needs a pair";
  DataConfig given = config(64, 4);
  given.data = "some.txt";
  EXPECT_THROW(load_task(given), Error);
}

}  // namespace
}  // namespace strata
