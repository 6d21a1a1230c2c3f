// What --every-epoch writes.
#include "inspect/track_scores.h"

#include <gtest/gtest.h>

#include "train/metrics.h"
#include "train/tiny_run.h"
#include "train/trainer.h"
#include "util/error.h"

namespace strata {
namespace {

using EveryEpoch = WithCache;

TEST_F(EveryEpoch, TestsTheScoresOfEveryHeadAndLevel) {
  RunConfig config = tiny_config("hkt");
  config.train.epochs = 2;
  config.train.every_epoch = true;
  const RunFolder folder{fresh_folder("every_epoch")};
  train(config, folder, {.quiet = true, .tracker = track_scores});
  int64_t lines = 0;
  for (const Json& line : read_metrics(folder.root)) {
    if (line.at("kind") != "gaussianity") continue;
    ++lines;
    ASSERT_EQ(line.at("layers").size(), static_cast<size_t>(config.model.layers));
    EXPECT_EQ(line.at("layers")[0].size(), static_cast<size_t>(config.model.heads));
    EXPECT_EQ(line.at("layers")[0][0].size(), static_cast<size_t>(config.model.levels));
    EXPECT_EQ(line.at("rows"), 16);
    for (const char* key : {"kurtosis_ratio", "kurtosis_p", "skewness_p"})
      EXPECT_TRUE(line.at("layers")[0][0][0].contains(key)) << key;
  }
  EXPECT_EQ(lines, 3) << "before the first step, and after each epoch";
}

TEST_F(EveryEpoch, NeedsATracker) {
  RunConfig config = tiny_config("hkt");
  config.train.every_epoch = true;
  EXPECT_THROW(train(config, {fresh_folder("no_tracker")}, {.quiet = true}), Error);
}

}  // namespace
}  // namespace strata
