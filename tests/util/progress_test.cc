#include "util/progress.h"

#include <gtest/gtest.h>

namespace strata {
namespace {

TEST(Progress, Words) {
  EXPECT_EQ(duration(65.4), "1:05");
  EXPECT_EQ(duration(7209), "2:00:09");
  EXPECT_EQ(duration(-1), "0:00");
  EXPECT_EQ(bar(0.5, 4), "[##--]");
  EXPECT_EQ(bar(1.5, 4), "[####]");
}

}  // namespace
}  // namespace strata
