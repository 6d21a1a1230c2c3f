// Packed files, files that are missing, and the splits and limits of load_task.
#include <gtest/gtest.h>

#include <set>

#include "data/support.h"
#include "data/task.h"

namespace strata {
namespace {

std::string bytes_of(std::string_view hex) {
  std::string bytes;
  for (size_t at = 0; at + 1 < hex.size(); at += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(at, 2)), nullptr, 16));
  }
  return bytes;
}

const std::string kPlain = "1\t9\t7\tgood film, good film\n";
// kPlain as gzip -9, xz -9e, zstd -19 and bzip2 pack it.
const std::pair<const char*, std::string> kPacked[] = {
    {".gz", bytes_of("1f8b080000000000020333e4b4e434e74ccfcf4f5148cbccc9d5518033b9000762a9b41b000000")},
    {".xz", bytes_of("fd377a585a0000016922de36020021011c00000010cf58cce0001a00185d001882438d44917b8f97f5194e49fafc37690"
                     "a9e5cf9b04c0000"
                     "0762a9b40001301b344aa5759042990d010000000001595a")},
    {".zst", bytes_of("28b52ffd241bc5000090310939093709676f6f642066696c6d2c200a01005d9425cd1b543e")},
    {".bz2", bytes_of("425a6839314159265359410bdf5700000459000030400420a005a6a000212a34610da840000878ba29a644730dd2c438"
                      "8f8bb9229c284820"
                      "85efab80")},
};

bool unpacks() {  // a build without libarchive says so
  const TempFolder folder;
  try {
    read_file(folder.write("a", kPacked[0].second));
  } catch (const Error& error) {
    return !contains(error.what(), "no libarchive");
  }
  return true;
}

TEST(PackedFiles, AreUnpackedWhateverTheirName) {
  if (!unpacks()) GTEST_SKIP() << "this build has no libarchive";
  const TempFolder folder;
  for (const auto& [extension, packed] : kPacked) {
    EXPECT_EQ(read_file(folder.write(std::string("a.tsv") + extension, packed)), kPlain) << extension;
    EXPECT_EQ(read_file(folder.write("a.tsv", packed)), kPlain) << extension;
    EXPECT_EQ(read_file(folder.write("two", packed + packed)), kPlain + kPlain) << extension;  // as `cat` joins them
  }
  EXPECT_EQ(read_file(folder.write("plain", kPlain)), kPlain);
  EXPECT_EQ(read_file(folder.write("nothing", "")), "");
}

TEST(PackedFiles, CutOffIsAnError) {
  if (!unpacks()) GTEST_SKIP() << "this build has no libarchive";
  const TempFolder folder;
  for (const auto& [extension, packed] : kPacked) {
    for (const size_t missing : {size_t{1}, packed.size() / 2}) {
      const fs::path path = folder.write(std::string("cut") + extension, packed.substr(0, packed.size() - missing));
      EXPECT_SAYS(error_of(ExitCode::kData, [&] { read_file(path); }), "is the file complete?") << extension << missing;
    }
  }
}

TEST(PackedFiles, StandInForASplit) {
  if (!unpacks()) GTEST_SKIP() << "this build has no libarchive";
  for (const auto& [extension, packed] : kPacked) {
    if (std::string(extension) == ".bz2") continue;  // not looked for
    const TempFolder folder;
    folder.write(std::string("train.tsv") + extension, packed);
    folder.write("test.tsv", kPlain);
    DataConfig config;
    config.task = "imdb", config.data = folder.path().string();
    EXPECT_EQ(text_of(load_task(config).train.row(0)), "good film, good film") << extension;
    EXPECT_EQ(find_split(folder.path(), "train", {".csv", ".tsv"}),
              folder.path() / (std::string("train.tsv") + extension));
    EXPECT_EQ(find_split(folder.path(), "valid", {".csv", ".tsv"}), fs::path());
  }
}

// ------------------------------------------------------------------------------------------------- what is missing

TEST(MissingData, SaysWhatToDo) {
  const TempFolder folder;
  const Environment cache("XDG_CACHE_HOME", folder.path().c_str());
  auto refusal = [&](const char* task, const fs::path& data, ExitCode code = ExitCode::kData) {
    DataConfig config;
    config.task = task, config.data = data.string();
    return error_of(code, [&] { load_task(config); });
  };
  EXPECT_SAYS(refusal("imdb", ""),
              "strata/imdb: expected a folder with the IMDB set; download it with `strata data get imdb`");
  EXPECT_SAYS(refusal("cifar10", ""), "download it with `strata data get cifar10`, or pass a copy with --data");
  EXPECT_SAYS(refusal("captions", ""), "strata/cifar10: expected a folder with CIFAR-10; download it with");
  EXPECT_SAYS(refusal("imdb", folder.path()), "expected train/ or train.tsv in this folder, found neither");
  for (const char* task : {"listops", "text", "table"}) {
    EXPECT_SAYS(refusal(task, folder.path() / "not.csv"), "not.csv: could not open (No such file or directory)");
  }
  EXPECT_EQ(
      refusal("imbd", "", ExitCode::kUsage),
      "task: expected one of listops, imdb, cifar10, captions, text, recall, table, got imbd (did you mean imdb?)");
  EXPECT_SAYS(error_of(ExitCode::kData, [&] { read_file(folder.path()); }), "expected a file, got a folder");
}

// ------------------------------------------------------------------------------------------------- splits

// Reviews of their own number, so that rows can be told apart.
struct Reviews : ::testing::Test {
  Reviews() {
    std::string train, test;
    for (int i = 0; i < 200; ++i) train += fmt::format("{}\t5\t{}\treview {}\n", i % 2, i, i);
    for (int i = 0; i < 30; ++i) test += fmt::format("{}\t5\t{}\ttest {}\n", i % 2, i, i);
    folder.write("train.tsv", train);
    folder.write("test.tsv", test);
    config.task = "imdb", config.data = folder.path().string();
  }
  static std::vector<std::string> texts(const Dataset& data) {
    std::vector<std::string> all;
    for (int64_t i = 0; i < data.size(); ++i) all.push_back(text_of(data.row(i)));
    return all;
  }
  TempFolder folder;
  DataConfig config;
};

TEST_F(Reviews, ValidationIsCutFromTrainingBySeed) {
  const TaskData data = load_task(config);
  EXPECT_EQ(data.train.size(), 180);
  EXPECT_EQ(data.valid.size(), 20);
  EXPECT_EQ(data.test.size(), 30);
  std::set<std::string> together;
  for (const Dataset* split : {&data.train, &data.valid}) {
    for (const std::string& text : texts(*split)) {
      EXPECT_TRUE(together.insert(text).second) << text;
      EXPECT_EQ(text.substr(0, 7), "review ");
    }
  }
  EXPECT_EQ(together.size(), 200U);
  for (int64_t i = 0; i < data.valid.size(); ++i) {  // labels go with their texts
    EXPECT_EQ(data.valid.rows[i].label, std::stoi(texts(data.valid)[i].substr(7)) % 2);
  }
  EXPECT_EQ(texts(load_task(config).valid), texts(data.valid));
  config.data_seed = 2;
  EXPECT_NE(texts(load_task(config).valid), texts(data.valid));
}

TEST_F(Reviews, Limits) {
  const std::vector<std::string> all = texts(load_task(config).train);
  config.train_rows = 50, config.test_rows = 3;
  TaskData data = load_task(config);
  EXPECT_EQ(texts(data.train), std::vector<std::string>(all.begin(), all.begin() + 50));
  EXPECT_EQ(texts(data.test), (std::vector<std::string>{"test 0", "test 1", "test 2"}));
  EXPECT_EQ(data.valid.size(), 20);
  config.train_rows = 100000, config.test_rows = 0, config.valid_rows = 7;
  data = load_task(config);
  EXPECT_EQ(data.valid.size(), 7);
  EXPECT_EQ(data.train.size(), 193);
  EXPECT_EQ(data.test.size(), 30);
  config.valid_rows = 1000;  // never more than half
  EXPECT_EQ(load_task(config).valid.size(), 100);
  config.valid_rows = 0, config.valid_share = 0.25;
  EXPECT_EQ(load_task(config).valid.size(), 50);
}

TEST_F(Reviews, NoUsableRows) {
  folder.write("train.tsv", "7\t1\t1\ta\n");
  EXPECT_EQ(error_of(ExitCode::kData, [&] { load_task(config); }),
            "imdb: no usable training rows, for example train.tsv line 1: expected a label of 0 or 1, got \"7\"");
}

TEST_F(Reviews, ProblemsInWords) {
  EXPECT_TRUE(describe_problems(load_task(config)).empty());
  folder.write("test.tsv", "1\t1\t1\ta\n7\t1\t1\ta\n8\t1\t1\ta\n");
  EXPECT_EQ(describe_problems(load_task(config)),
            std::vector<std::string>{
                "2 unusable test rows were left out, for example: test.tsv line 2: expected a label of 0 or "
                "1, got \"7\""});
}

TEST(Inputs, BytesAndImages) {
  EXPECT_EQ(text_of(encode_input("imdb", "a film", 3)), "a f");
  EXPECT_EQ(encode_input("text", std::string("\0\xff", 2), 8), (std::vector<Token>{1, 256}));
  EXPECT_EQ(encode_input("cifar10", std::string(1024, '\x05'), 1024), std::vector<Token>(1024, 6));
  EXPECT_EQ(error_of(ExitCode::kData, [] { encode_input("cifar10", "x", 1024); }),
            "input: expected an image of 32 x 32 grey bytes, got 1 bytes");
  EXPECT_EQ(encode_input("cifar10", std::string(64, '\x05'), 64), std::vector<Token>(64, 6));
  EXPECT_EQ(error_of(ExitCode::kData, [] { encode_input("cifar10", std::string(1024, 'x'), 256); }),
            "input: expected an image of 16 x 16 grey bytes, got 1024 bytes");
  EXPECT_EQ(error_of(ExitCode::kData, [] { encode_input("table", "", 8); }), "input: expected some text, got nothing");
}

TEST(Tokens, AreShownAsPeopleReadThem) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(show_tokens("listops", encode_input("listops", "[MAX 1 2 ]", 8)), (Words{"[MAX", "1", "2", "]"}));
  EXPECT_EQ(show_tokens("imdb", encode_input("imdb", "a\n\xc3", 8)), (Words{"a", "\n", "\\xC3"}));
  EXPECT_EQ(show_tokens("cifar10", std::vector<Token>{1, 256}), (Words{"0", "255"}));
}

}  // namespace
}  // namespace strata
