// Files of ListOps: both formats, bad rows, and labels computed by other code.
#include <gtest/gtest.h>

#include <set>

#include "data/cache.h"
#include "data/generate.h"
#include "data/listops.h"
#include "data/support.h"
#include "data/task.h"

namespace strata {
namespace {

std::vector<int> labels_of(const Dataset& data) {
  std::vector<int> labels;
  for (const Dataset::Row& row : data.rows) labels.push_back(row.label);
  return labels;
}

std::string words_of(std::span<const Token> tokens) {
  std::string words;
  for (const Token token : tokens) {
    if (!words.empty()) words += ' ';
    words += listops_word(token);
  }
  return words;
}

TEST(ListopsReader, ValueFirst) {
  const Dataset data = read_listops("9\t[MAX 2 9 ]\n4\t( ( [MIN 4 ) 7 ) ]\n\n3\t3", "a.tsv", 64);
  EXPECT_EQ(labels_of(data), (std::vector<int>{9, 4, 3}));
  EXPECT_EQ(words_of(data.row(0)), "[MAX 2 9 ]");
  EXPECT_EQ(words_of(data.row(1)), "[MIN 4 7 ]");
  EXPECT_EQ(words_of(data.row(2)), "3");
  EXPECT_EQ(data.bad, 0);
  EXPECT_EQ(data.cut, 0);
}

TEST(ListopsReader, SourceFirstWithWindowsLineEnds) {
  const Dataset data = read_listops("Source\tTarget\r\n( ( ( [SM 5 ) 6 ) ] )\t1\r\n[MED 1 4 ]\t2\r\n", "lra.tsv", 64);
  EXPECT_EQ(labels_of(data), (std::vector<int>{1, 2}));
  EXPECT_EQ(words_of(data.row(0)), "[SM 5 6 ]");
  EXPECT_EQ(data.bad, 0) << data.problems.front();
}

TEST(ListopsReader, BadRowsAreCountedAndDescribed) {
  const std::pair<const char*, const char*> cases[] = {
      {"10\t[MAX 1 2 ]", "x.tsv line 2: expected a value of 0 to 9, got \"10\""},
      {"\t[MAX 1 2 ]", "x.tsv line 2: expected a value of 0 to 9, got \"\""},
      {"a\t[MAX 1 2 ]", "x.tsv line 2: expected a value of 0 to 9, got \"a\""},
      {"3\t[MAX 1 2 ]", "x.tsv line 2: its value is 2, not 3"},
      {"2\t[MUX 1 2 ]", "x.tsv line 2: unknown word \"[MUX\""},
      {"2\t[MAX 1 2", "x.tsv line 2: the expression is not well formed"},
      {"2\t", "x.tsv line 2: the expression is not well formed"},
      {"2 [MAX 1 2 ]", "x.tsv line 2: expected a value, a tab and an expression"},
      {"2\t[MAX 1 2 0 0 ]", "x.tsv line 2: expected at most 5 tokens, got 6; raise --length"},
  };
  for (const auto& [row, problem] : cases) {
    const Dataset data = read_listops(std::string("2\t[MAX 1 2 0 ]\n") + row + "\n1\t1\n", "x.tsv", 5);
    EXPECT_EQ(labels_of(data), (std::vector<int>{2, 1})) << row;
    EXPECT_EQ(data.bad, 1) << row;
    EXPECT_EQ(data.problems, std::vector<std::string>{problem});
  }
}

TEST(ListopsReader, OnlyTheFirstFewProblemsAreKept) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "0\t1\n";
  const Dataset data = read_listops(text, "x.tsv", 5);
  EXPECT_EQ(data.bad, 100);
  ASSERT_EQ(data.problems.size(), 5U);
  EXPECT_EQ(data.problems.back(), "x.tsv line 5: its value is 1, not 0");
}

// Expressions of 1 to 420 tokens by make_listops; the labels in the file were computed by a separate evaluator in
// Python (nested lists, then min, max, sorted and sum), not by the code under test.
TEST(ListopsReader, ShippedSample) {
  const Dataset data = read_listops(slurp(STRATA_TEST_DATA "/listops_sample.tsv"), "listops_sample.tsv", 512);
  EXPECT_EQ(data.bad, 0) << data.problems.front();
  EXPECT_EQ(data.size(), 60);
  EXPECT_EQ(data.tokens.size(), 3276U);
  std::set<int> labels;
  for (const int label : labels_of(data)) labels.insert(label);
  EXPECT_EQ(labels.size(), 10U);
}

TEST(ListopsReader, RowsOfOthers) {
  const char* path = std::getenv("STRATA_LISTOPS_TSV");
  if (path == nullptr) GTEST_SKIP() << "STRATA_LISTOPS_TSV names no file of ListOps rows to check";
  const Dataset data = read_listops(read_file(path), path, 1 << 20);
  EXPECT_EQ(data.bad, 0) << data.problems.front();
  EXPECT_GT(data.size(), 0);
  RecordProperty("rows", static_cast<int>(data.size()));
}

// ------------------------------------------------------------------------------------------------- the task

TEST(ListopsTask, IsMadeOnceAndKept) {
  const TempFolder cache;
  const Environment place("XDG_CACHE_HOME", cache.path().c_str());
  DataConfig config;
  config.train_rows = 40, config.valid_rows = 20, config.test_rows = 10, config.length = 48;
  const TaskData data = load_task(config);
  EXPECT_EQ(data.train.size(), 40);
  EXPECT_EQ(data.valid.size(), 20);
  EXPECT_EQ(data.test.size(), 10);
  EXPECT_EQ(data.vocabulary, kListopsVocabulary);
  EXPECT_EQ(data.labels.size(), 10U);
  std::set<std::string> distinct;
  for (const Dataset* split : {&data.train, &data.valid, &data.test}) {
    for (int64_t i = 0; i < split->size(); ++i) distinct.insert(words_of(split->row(i)));
  }
  EXPECT_EQ(distinct.size(), 70U);  // no row is in two splits

  const fs::path folder = listops_folder(config);
  EXPECT_EQ(folder.parent_path(), cache.path() / "strata" / "listops");
  EXPECT_TRUE(check_set(folder, true).problems.empty());
  const std::string all = make_listops({.rows = 70, .min_length = 16, .max_length = 48});
  EXPECT_EQ(slurp(folder / "train.tsv") + slurp(folder / "valid.tsv") + slurp(folder / "test.tsv"), all);

  const auto made = fs::last_write_time(folder / "manifest.json");
  EXPECT_EQ(make_listops_set(config, false), folder);
  EXPECT_EQ(fs::last_write_time(folder / "manifest.json"), made);  // found, not made again
  fs::resize_file(folder / "train.tsv", 5);
  EXPECT_EQ(load_task(config).train.size(), 40);  // a damaged set is made again
  EXPECT_EQ(fs::file_size(folder / "train.tsv"),
            all.size() - fs::file_size(folder / "valid.tsv") - fs::file_size(folder / "test.tsv"));
}

TEST(ListopsTask, OwnFilesAndFolders) {
  const TempFolder folder;
  DataConfig config;
  config.data = folder.write("all.tsv", make_listops({.rows = 100})).string();
  const TaskData one = load_task(config);
  EXPECT_EQ(one.test.size(), 10);
  EXPECT_EQ(one.valid.size(), 9);  // a tenth of the ninety that are left
  EXPECT_EQ(one.train.size(), 81);

  config.data = folder.path().string();
  EXPECT_SAYS(error_of(ExitCode::kData, [&] { load_task(config); }), "expected train.tsv in this folder, found none");
  folder.write("train.tsv", make_listops({.rows = 20}));
  EXPECT_SAYS(error_of(ExitCode::kData, [&] { load_task(config); }), "expected test.tsv in this folder, found none");
  folder.write("test.tsv", "1\t2\n");
  EXPECT_EQ(error_of(ExitCode::kData, [&] { load_task(config); }),
            "listops: no usable test rows, for example test.tsv line 1: its value is 2, not 1");
  folder.write("test.tsv", "2\t2\n");
  EXPECT_EQ(load_task(config).test.size(), 1);
}

TEST(ListopsTask, InputOfAUser) {
  EXPECT_EQ(words_of(encode_input("listops", "[MAX 1 ( 2 ) ]", 8)), "[MAX 1 2 ]");
  auto refusal = [](const char* input) {
    return error_of(ExitCode::kData, [&] { encode_input("listops", input, 4); });
  };
  EXPECT_SAYS(refusal("[MAX 1 x ]"), "unknown word \"x\"");
  EXPECT_SAYS(refusal("[MAX 1"), "expected one well-formed expression");
  EXPECT_EQ(refusal("[MAX 1 2 3 ]"), "input: expected at most 4 tokens, which is what the model reads, got 5");
}

}  // namespace
}  // namespace strata
