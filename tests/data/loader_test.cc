// Batches, and the thread that prepares them in advance.
#include "data/loader.h"

#include <gtest/gtest.h>

#include "data/support.h"
#include "data/task.h"
#include "util/random.h"

namespace strata {
namespace {

using Numbers = std::vector<int64_t>;

Dataset dataset(const std::vector<std::vector<Token>>& rows) {
  Dataset data;
  for (size_t i = 0; i < rows.size(); ++i) data.add_row(rows[i], static_cast<int32_t>(10 + i), 1000);
  return data;
}

Dataset random_dataset(int64_t rows, uint64_t seed) {
  Dataset data;
  Random random(seed);
  for (int64_t i = 0; i < rows; ++i) {
    std::vector<Token> row(2 + random.below(30));
    for (Token& token : row) token = static_cast<Token>(1 + random.below(256));
    data.add_row(row, static_cast<int32_t>(random.below(10)), 1000);
  }
  return data;
}

void expect_same(const Batch& a, const Batch& b) {
  EXPECT_EQ(a.rows, b.rows);
  EXPECT_EQ(a.width, b.width);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.lengths, b.lengths);
  EXPECT_EQ(a.targets, b.targets);
  EXPECT_EQ(a.real_tokens, b.real_tokens);
  ASSERT_EQ(a.trees.size(), b.trees.size());
  for (size_t r = 0; r < a.trees.size(); ++r) EXPECT_EQ(a.trees[r]->to_string(), b.trees[r]->to_string());
}

// ------------------------------------------------------------------------------------------------- one batch

TEST(Batches, Classes) {
  const Dataset data = dataset({{1, 2, 3}, {4}, {5, 6}, {7, 8}});
  LoaderOptions options;
  options.batch = 3;
  const Batch first = make_batch(data, options, 0);
  EXPECT_EQ(first.rows, 3);
  EXPECT_EQ(first.width, 3);
  EXPECT_EQ(first.tokens, (Numbers{1, 2, 3, 4, 0, 0, 5, 6, 0}));
  EXPECT_EQ(first.lengths, (Numbers{3, 1, 2}));
  EXPECT_EQ(first.targets, (Numbers{10, 11, 12}));
  EXPECT_EQ(first.real_tokens, 6);
  EXPECT_TRUE(first.trees.empty());
  const Batch last = make_batch(data, options, 1);  // smaller, and as narrow as its rows
  EXPECT_EQ(last.rows, 1);
  EXPECT_EQ(last.tokens, (Numbers{7, 8}));
  EXPECT_EQ(last.targets, Numbers{13});
  EXPECT_EQ(Loader::batches(data, 3), 2);
  EXPECT_EQ(Loader::batches(data, 4), 1);
  EXPECT_EQ(Loader::batches(Dataset(), 4), 0);
}

TEST(Batches, NextTokens) {
  const Dataset data = dataset({{1, 2, 3, 4}, {5, 6}, {7, 8, 9}});
  LoaderOptions options;
  options.batch = 3, options.goal = Goal::kNextToken, options.trees = std::make_shared<TreeMaker>("balanced", 2);
  const Batch batch = make_batch(data, options, 0);
  EXPECT_EQ(batch.width, 3);
  EXPECT_EQ(batch.tokens, (Numbers{1, 2, 3, 5, 0, 0, 7, 8, 0}));
  EXPECT_EQ(batch.targets, (Numbers{2, 3, 4, 6, -1, -1, 8, 9, -1}));
  EXPECT_EQ(batch.lengths, (Numbers{3, 1, 2}));
  EXPECT_EQ(batch.real_tokens, 6);
  ASSERT_EQ(batch.trees.size(), 3U);
  for (int r = 0; r < 3; ++r)
    EXPECT_EQ(batch.trees[r]->tokens(), batch.lengths[r]);  // over what is read, not what is predicted
}

TEST(Batches, OrderOfRows) {
  const Dataset data = dataset({{1}, {2}, {3}, {4}});
  LoaderOptions options;
  options.batch = 2, options.order = {3, 1, 0, 2};
  EXPECT_EQ(make_batch(data, options, 0).tokens, (Numbers{4, 2}));
  EXPECT_EQ(make_batch(data, options, 0).targets, (Numbers{13, 11}));
  EXPECT_EQ(make_batch(data, options, 1).tokens, (Numbers{1, 3}));
}

TEST(Batches, QuadtreesPermuteTheirTokens) {
  std::vector<Token> image(16);
  for (int i = 0; i < 16; ++i) image[i] = static_cast<Token>(100 + i);
  const Dataset data = dataset({{9}, image});
  LoaderOptions options;
  options.trees = std::make_shared<TreeMaker>("quadtree", 4);
  const Batch batch = make_batch(data, options, 0);
  EXPECT_EQ(Numbers(batch.tokens.begin(), batch.tokens.begin() + 2), (Numbers{9, 0}));
  const std::vector<int64_t> order = quadtree_order(4, 4);
  for (int t = 0; t < 16; ++t) EXPECT_EQ(batch.tokens[16 + t], 100 + order[t]);
  EXPECT_EQ(batch.targets, (Numbers{10, 11}));
}

// ------------------------------------------------------------------------------------------------- the thread

TEST(Loaders, GiveWhatMakeBatchGives) {
  const Dataset data = random_dataset(103, 7);
  for (const Goal goal : {Goal::kClassify, Goal::kNextToken}) {
    for (const char* kind : {"", "text", "balanced"}) {
      for (const int64_t first : {0, 4, 14, 99}) {
        LoaderOptions options;
        options.batch = 8, options.goal = goal, options.first_batch = first;
        if (first > 0) options.order = permutation(data.size(), 3);
        if (*kind != '\0') options.trees = std::make_shared<TreeMaker>(kind, 4);
        Loader loader(data, options);
        LoaderOptions plain = options;
        if (*kind != '\0') plain.trees = std::make_shared<TreeMaker>(kind, 4);
        int64_t index = first;
        for (Batch batch; loader.next(batch); ++index) expect_same(batch, make_batch(data, plain, index));
        EXPECT_EQ(index, std::max<int64_t>(first, 13));  // 103 rows are 13 batches
        Batch batch;
        EXPECT_FALSE(loader.next(batch));  // and stays at the end
      }
    }
  }
}

TEST(Loaders, EveryRowOnce) {
  const Dataset data = random_dataset(1000, 1);
  LoaderOptions options;
  options.batch = 3, options.order = permutation(1000, 9);
  Loader loader(data, options);
  int64_t rows = 0;
  for (Batch batch; loader.next(batch); rows += batch.rows) {
    for (int64_t r = 0; r < batch.rows; ++r) {
      const int64_t row = options.order[rows + r];
      ASSERT_EQ(batch.lengths[r], data.rows[row].length);
      ASSERT_EQ(batch.targets[r], data.rows[row].label);
      ASSERT_EQ(batch.tokens[r * batch.width], data.row(row)[0]);
    }
  }
  EXPECT_EQ(rows, 1000);
}

TEST(Loaders, FaultsOfTheThreadReachTheCaller) {
  std::vector<std::vector<Token>> rows(12, std::vector<Token>(4, 1));
  rows[5].resize(3);  // no square
  const Dataset data = dataset(rows);
  LoaderOptions options;
  options.batch = 2, options.trees = std::make_shared<TreeMaker>("quadtree", 4);
  Loader loader(data, options);
  Batch batch;
  EXPECT_TRUE(loader.next(batch));
  EXPECT_TRUE(loader.next(batch));
  for (int times = 0; times < 2; ++times) {
    EXPECT_EQ(error_of(ExitCode::kData, [&] { loader.next(batch); }),
              "tree: expected a square image for a quadtree, got 3 pixels");
  }
}

// With a thread that waits for room, one that works, one that is done and one that failed.
TEST(Loaders, EndEarly) {
  const Dataset data = random_dataset(500, 2);
  LoaderOptions options;
  options.batch = 1;
  for (int taken = 0; taken < 20; ++taken) {
    Loader loader(data, options);
    Batch batch;
    for (int i = 0; i < taken; ++i) ASSERT_TRUE(loader.next(batch));
  }
  options.first_batch = 499;
  Loader done(data, options);
  options.first_batch = 0, options.trees = std::make_shared<TreeMaker>("quadtree", 4);
  Loader failing(data, options);
}

TEST(Loaders, NoRows) {
  const Dataset data;
  Loader loader(data, {});
  Batch batch;
  EXPECT_FALSE(loader.next(batch));
}

}  // namespace
}  // namespace strata
