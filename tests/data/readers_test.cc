// IMDB, CIFAR-10 and text from files: layouts, bad rows, and the splits that load_task makes of them.
#include <gtest/gtest.h>

#include <set>

#include "data/support.h"
#include "data/task.h"

namespace strata {
namespace {

DataConfig config_for(const char* task, const fs::path& data) {
  DataConfig config;
  config.task = task;
  config.data = data.string();
  return config;
}

std::string refusal(const DataConfig& config, ExitCode code = ExitCode::kData) {
  return error_of(code, [&] { load_task(config); });
}

// ------------------------------------------------------------------------------------------------- IMDB

TEST(Imdb, OnlyTheFirstThreeTabsSplit) {
  const TempFolder folder;
  // U+0085 and U+2028 are line ends for some programs; here they are part of a review.
  const std::string text = "caf\xc3\xa9\tand\ttabs \xc2\x85 here\xe2\x80\xa8 too";
  folder.write("train.tsv", "1\t9\t0\t" + text + "\r\n0\t1\t1\tbad\n");
  folder.write("test.tsv", "0\t2\t7\tx\n");
  DataConfig config = config_for("imdb", folder.path());
  config.length = 1024;
  const TaskData data = load_imdb(config);
  ASSERT_EQ(data.train.size(), 2);
  EXPECT_EQ(text_of(data.train.row(0)), text);
  EXPECT_EQ(data.train.rows[0].label, 1);
  EXPECT_EQ(text_of(data.train.row(1)), "bad");  // neither rating nor id
  EXPECT_EQ(data.train.rows[1].label, 0);
  EXPECT_EQ(data.train.row(0)[3], 1 + 0xc3);  // token 1 + b is byte b
  EXPECT_EQ(data.train.bad + data.train.cut, 0);
  EXPECT_EQ(data.labels, (std::vector<std::string>{"negative", "positive"}));
}

TEST(Imdb, RatingsNeverReachTheTokens) {
  const TempFolder folder;
  for (const int rating : {1, 9}) {
    folder.write(fmt::format("{}/train.tsv", rating), fmt::format("1\t{}\t3\tfilm\n0\t{}\t4\tfilm\n", rating, rating));
    folder.write(fmt::format("{}/test.tsv", rating), fmt::format("1\t{}\t5\tfilm\n", rating));
  }
  const TaskData low = load_task(config_for("imdb", folder.path() / "1")),
                 high = load_task(config_for("imdb", folder.path() / "9"));
  EXPECT_EQ(low.train.tokens, high.train.tokens);
  EXPECT_EQ(low.test.tokens, high.test.tokens);
  EXPECT_EQ(text_of(low.train.tokens), "filmfilm");
}

TEST(Imdb, BadAndLongRows) {
  const TempFolder folder;
  folder.write("train.tsv", "2\t9\t0\ta\n01\t9\t0\ta\n1\t9\ta\n1\t9\t0\t\n1\t9\t0\tabcdef\n0\t9\t1\tabc\n");
  folder.write("test.tsv", "1\t1\t1\tz\n");
  DataConfig config = config_for("imdb", folder.path());
  config.length = 4;
  const TaskData data = load_task(config);
  EXPECT_EQ(data.train.problems, (std::vector<std::string>{
                                     "train.tsv line 1: expected a label of 0 or 1, got \"2\"",
                                     "train.tsv line 2: expected a label of 0 or 1, got \"01\"",
                                     "train.tsv line 3: expected label, rating, id and text, separated by tabs",
                                     "train.tsv line 4: the text is empty",
                                 }));
  EXPECT_EQ(data.train.bad, 4);
  EXPECT_EQ(data.train.cut, 1);
  ASSERT_EQ(data.train.size(), 2);
  EXPECT_EQ(text_of(data.train.row(0)), "abcd");
}

TEST(Imdb, OfficialFolder) {
  const TempFolder folder;
  folder.write("train/pos/10_9.txt", "ten");
  folder.write("train/pos/2_7.txt", "two\nlines\t");
  folder.write("train/neg/3_1.txt", "three");
  folder.write("train/neg/4_1.txt", "");
  folder.write("train/neg/readme.md", "no review");
  folder.write("test/neg/0_3.txt", "zero");
  EXPECT_SAYS(refusal(config_for("imdb", folder.path())), "test/pos: expected this folder of the IMDB set");
  folder.write("test/pos/0_8.txt", "nought");
  const TaskData data = load_task(config_for("imdb", folder.path()));
  ASSERT_EQ(data.train.size(), 3);
  EXPECT_EQ(text_of(data.train.tokens), "two\nlines\tthreeten");  // by id, as numbers
  EXPECT_EQ(data.train.rows[1].label, 0);
  EXPECT_EQ(data.train.rows[2].label, 1);
  EXPECT_EQ(data.train.bad, 1);
  EXPECT_SAYS(data.train.problems.front(), "4_1.txt: the text is empty");
  EXPECT_EQ(text_of(data.test.tokens), "zeronought");
}

// ------------------------------------------------------------------------------------------------- CIFAR-10

TEST(Cifar10, OfficialRowsBecomeGrey) {
  const TempFolder folder;
  auto row = [](char label, uint8_t red, uint8_t green, uint8_t blue) {
    std::string bytes(1 + 3 * 1024, '\0');
    bytes[0] = label;
    for (int i = 0; i < 1024; ++i) {
      bytes[1 + i] = static_cast<char>(i == 5 ? 255 : red);
      bytes[1 + 1024 + i] = static_cast<char>(green);
      bytes[1 + 2048 + i] = static_cast<char>(i == 5 ? 0 : blue);
    }
    return bytes;
  };
  folder.write("data_batch_1.bin", row(0, 10, 200, 77) + row(9, 255, 255, 255));
  for (const int batch : {2, 3, 4}) folder.write(fmt::format("data_batch_{}.bin", batch), row(batch, 0, 0, 0));
  EXPECT_SAYS(refusal(config_for("cifar10", folder.path())), "data_batch_5.bin: could not open");
  folder.write("data_batch_5.bin", row(5, 0, 0, 0));
  folder.write("test_batch.bin", row(1, 1, 2, 3));
  const TaskData data = load_task(config_for("cifar10", folder.path()));
  ASSERT_EQ(data.train.size(), 6);
  EXPECT_EQ(data.train.rows[0].label, 0);
  EXPECT_EQ(data.train.row(0).size(), 1024U);
  EXPECT_EQ(data.train.row(0)[0], 1 + 129);  // 0.299 * 10 + 0.587 * 200 + 0.114 * 77 = 129.168
  EXPECT_EQ(data.train.row(0)[5], 1 + 194);  // 0.299 * 255 + 0.587 * 200 = 193.645
  EXPECT_EQ(data.train.row(1)[0], 1 + 255);
  EXPECT_EQ(data.train.row(2)[5], 1 + 76);  // 0.299 * 255 = 76.245
  EXPECT_EQ(data.train.row(2)[1023], 1);
  EXPECT_EQ(data.test.row(0)[7], 1 + 2);  // 0.299 + 1.174 + 0.342 = 1.815
  EXPECT_EQ(data.labels[data.train.rows[1].label], "truck");
}

TEST(Cifar10, GreyRowsAndTheirFaults) {
  const TempFolder folder;
  auto row = [](int label, int first) {
    std::string bytes(1025, '\x80');
    bytes[0] = static_cast<char>(label);
    bytes[1] = static_cast<char>(first);
    return bytes;
  };
  folder.write("train.bin", row(3, 0) + row(10, 1) + row(4, 255) + row(200, 0) + row(1, 1).substr(0, 100));
  DataConfig config = config_for("cifar10", folder.path());
  EXPECT_SAYS(refusal(config), "expected test.bin beside train.bin, found none");
  folder.write("test.bin", row(0, 7));
  config.valid_share = 0;
  const TaskData data = load_task(config);
  ASSERT_EQ(data.train.size(), 2);
  EXPECT_EQ(data.train.row(0)[0], 1);
  EXPECT_EQ(data.train.row(1)[0], 256);
  EXPECT_EQ(data.train.row(1)[1023], 1 + 0x80);
  EXPECT_EQ(data.train.rows[1].label, 4);
  EXPECT_EQ(data.train.problems, (std::vector<std::string>{
                                     "train.bin row 2: expected a label of 0 to 9, got 10",
                                     "train.bin row 4: expected a label of 0 to 9, got 200",
                                     "train.bin: the last row is incomplete (100 bytes, expected 1025)",
                                 }));
  config.length = 512;
  EXPECT_EQ(refusal(config, ExitCode::kUsage),
            "length: expected 1024, 256 or 64, an image of 32, 16 or 8 pixels a side, got 512");
}

// Blocks of 2 x 2 and 4 x 4 pixels become their means, rounded; what is unusable is told as before.
TEST(Cifar10, SmallImagesAreMeansOfBlocks) {
  const TempFolder folder;
  std::string bytes(1025, '\0');
  auto set = [&](int y, int x, int grey) { bytes[1 + 32 * y + x] = static_cast<char>(grey); };
  set(0, 0, 10), set(0, 1, 20), set(1, 0, 30), set(1, 1, 41);  // mean 25.25
  set(2, 31, 255), set(3, 31, 255);                            // half of a block: 127.5
  set(30, 0, 255), set(30, 1, 255), set(31, 0, 255), set(31, 1, 255);
  folder.write("train.bin", bytes + bytes + std::string(1, '\x0a') + bytes.substr(1));
  folder.write("test.bin", std::string(1, '\1') + bytes.substr(1));
  DataConfig config = config_for("cifar10", folder.path());
  config.valid_share = 0;
  config.length = 256;
  const TaskData data = load_task(config);
  ASSERT_EQ(data.train.size(), 2);
  EXPECT_EQ(data.train.bad, 1);
  EXPECT_SAYS(data.train.problems.front(), "train.bin row 3: expected a label of 0 to 9, got 10");
  EXPECT_EQ(data.test.rows[0].label, 1);
  std::vector<Token> expected(256, 1);
  expected[0] += 25, expected[31] += 128, expected[240] += 255;
  EXPECT_EQ(std::vector<Token>(data.train.row(1).begin(), data.train.row(1).end()), expected);
  config.length = 64;
  expected.assign(64, 1);
  expected[0] += 6, expected[7] += 32, expected[56] += 64;  // 101 / 16, 510 / 16, 1020 / 16
  const TaskData smaller = load_task(config);
  EXPECT_EQ(std::vector<Token>(smaller.test.row(0).begin(), smaller.test.row(0).end()), expected);
  EXPECT_EQ(smaller.test.cut, 0);
}

// ------------------------------------------------------------------------------------------------- text

TEST(Text, WindowsShareTheirBorders) {
  const TempFolder folder;
  for (const char* split : {"train", "valid", "test"}) {
    EXPECT_SAYS(refusal(config_for("text", folder.path())), fmt::format("expected {}.txt in this folder", split));
    folder.write(fmt::format("{}.txt", split), *split == 't' ? "abcdefghi" : "xy");
  }
  DataConfig config = config_for("text", folder.path());
  config.length = 4;
  const TaskData data = load_task(config);
  EXPECT_EQ(data.goal, Goal::kNextToken);
  ASSERT_EQ(data.train.size(), 2);
  EXPECT_EQ(text_of(data.train.row(0)), "abcde");
  EXPECT_EQ(text_of(data.train.row(1)), "efghi");  // the last of one is the first of the next
  EXPECT_EQ(text_of(data.valid.row(0)), "xy");
  folder.write("train.txt", "abcdefghijk");
  const TaskData longer = load_task(config);
  ASSERT_EQ(longer.train.size(), 3);
  EXPECT_EQ(text_of(longer.train.row(2)), "ijk");
}

TEST(Text, OneFileIsCutIntoThree) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i % 251);
  DataConfig config = config_for("text", folder.write("book.txt", text));
  config.length = 16;
  const TaskData data = load_task(config);
  EXPECT_EQ(text_of(data.train.tokens), text.substr(0, 900));
  EXPECT_EQ(text_of(data.valid.tokens), text.substr(900, 50));
  EXPECT_EQ(text_of(data.test.tokens), text.substr(950));
  std::string again;  // every byte but the first of a split is predicted once
  for (int64_t i = 0; i < data.train.size(); ++i) again += text_of(data.train.row(i)).substr(1);
  EXPECT_EQ(again, text.substr(1, 899));
  config.data = folder.write("short.txt", "a").string();
  EXPECT_EQ(refusal(config), "text: no usable training rows");
  config.data.clear();
  EXPECT_SAYS(refusal(config, ExitCode::kUsage), "pass it with --data");
}

}  // namespace
}  // namespace strata
