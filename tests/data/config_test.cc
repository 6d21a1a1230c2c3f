#include "data/config.h"

#include <gtest/gtest.h>

#include "data/support.h"

namespace strata {
namespace {

TEST(DataOptions, AreDeclaredWithTheirDefaults) {
  DataConfig config;
  OptionTable table;
  declare(table, config);
  const Json record = table.record();
  EXPECT_EQ(record["task"], "listops");
  EXPECT_EQ(record["valid_share"], 0.1);
  EXPECT_EQ(record["max_args"], 5);
  for (const Option& option : table.options()) EXPECT_FALSE(option.note.help.empty()) << option.name;
  EXPECT_EQ(error_of(ExitCode::kUsage, [&] { table.set(*table.find("max_args"), {"1"}, "--max-args"); }),
            "--max-args: expected 2 to 100, got 1");
  EXPECT_SAYS(error_of(ExitCode::kUsage, [&] { table.set(*table.find("task"), {"cifar"}, "--task"); }),
              "did you mean cifar10?");
  table.find("label_column")->given = true;
  EXPECT_SAYS(error_of(ExitCode::kUsage, [&] { table.check_task("imdb"); }),
              "label_column: applies to the task table only");
}

}  // namespace
}  // namespace strata
