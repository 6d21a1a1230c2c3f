// Archives of the official shape, made small with tar, into sets of the cache.
#include <gtest/gtest.h>

#include <cstdlib>

#include "data/cache.h"
#include "data/download.h"
#include "data/support.h"
#include "data/task.h"

namespace strata {
namespace {

struct Unpack : ::testing::Test {
  void SetUp() override {
    if (std::system("tar --version > /dev/null 2>&1 && gzip --version > /dev/null 2>&1") != 0) {
      GTEST_SKIP() << "there is no tar and gzip to make an archive with";
    }
    try {
      unpack_set(source("imdb"), folder.path() / "none", folder.path() / "set");
    } catch (const Error& error) {
      if (contains(error.what(), "no libarchive")) GTEST_SKIP() << "this build has no libarchive";
    }
  }
  static DownloadSource source(const char* task) { return {task, "http://example.org/x.tar.gz", "none"}; }
  // The folder `name` below ours, as NAME.tar.gz.
  fs::path pack(const std::string& name) const {
    const std::string at = folder.path().string();
    EXPECT_EQ(std::system(fmt::format("tar -C '{}' -czf '{}/{}.tar.gz' '{}'", at, at, name, name).c_str()), 0);
    return folder.path() / (name + ".tar.gz");
  }
  std::string refusal(const char* task, const fs::path& archive) const {
    const std::string message =
        error_of(ExitCode::kData, [&] { unpack_set(source(task), archive, folder.path() / "set"); });
    EXPECT_FALSE(fs::exists(folder.path() / "set")) << "a refused archive leaves no set";
    return message;
  }
  TempFolder folder;
};

TEST_F(Unpack, Imdb) {
  folder.write("aclImdb/README", "x");
  folder.write("aclImdb/train/pos/10_8.txt", "ten\ttabs");
  folder.write("aclImdb/train/pos/2_9.txt", "two\r\nlines");
  folder.write("aclImdb/train/neg/2_1.txt", "bad\xc2\x85 film");
  folder.write("aclImdb/train/unsup/0_0.txt", "no label");
  folder.write("aclImdb/train/urls_pos.txt", "http");
  folder.write("aclImdb/test/pos/0_10.txt", "good");
  folder.write("aclImdb/test/neg/1_2.txt", "awful");
  const fs::path set = folder.path() / "set";
  unpack_set(source("imdb"), pack("aclImdb"), set);
  EXPECT_EQ(slurp(set / "train.tsv"), "0\t1\t2\tbad\xc2\x85 film\n1\t9\t2\ttwo  lines\n1\t8\t10\tten\ttabs\n");
  EXPECT_EQ(slurp(set / "test.tsv"), "1\t10\t0\tgood\n0\t2\t1\tawful\n");
  const SetState state = check_set(set, true);
  EXPECT_TRUE(state.present);
  EXPECT_TRUE(state.problems.empty());
  EXPECT_EQ(state.manifest["origin"]["url"], "http://example.org/x.tar.gz");

  DataConfig config;  // and the set is read as the folder of the archive is
  config.task = "imdb", config.data = set.string(), config.valid_share = 0;
  const TaskData data = load_task(config);
  ASSERT_EQ(data.train.size(), 3);
  EXPECT_EQ(data.train.bad, 0);
  EXPECT_EQ(text_of(data.train.row(2)), "ten\ttabs");
  config.data = (folder.path() / "aclImdb").string();
  EXPECT_EQ(load_task(config).train.size(), 3);
}

TEST_F(Unpack, Cifar10) {
  const std::string row = "\x03" + std::string(3072, '\x40');
  for (int batch = 1; batch <= 5; ++batch) {
    const std::string first(1, static_cast<char>(batch));
    folder.write(fmt::format("cifar-10-batches-bin/data_batch_{}.bin", batch), first + row.substr(1));
  }
  folder.write("cifar-10-batches-bin/batches.meta.txt", "airplane\n");
  EXPECT_SAYS(refusal("cifar10", pack("cifar-10-batches-bin")),
              "expected data_batch_1.bin to data_batch_5.bin and test_batch.bin, got 5 such files");
  folder.write("cifar-10-batches-bin/test_batch.bin", row + row);
  const fs::path set = folder.path() / "set";
  unpack_set(source("cifar10"), pack("cifar-10-batches-bin"), set);
  EXPECT_TRUE(check_set(set, true).problems.empty());
  DataConfig config;
  config.task = "cifar10", config.data = set.string(), config.valid_share = 0;
  const TaskData data = load_task(config);
  EXPECT_EQ(data.train.size(), 5);
  EXPECT_EQ(data.test.size(), 2);
  EXPECT_EQ(data.test.row(1)[9], 1 + 0x40);
}

// Six files are not a set: their names and contents must differ.
TEST_F(Unpack, Cifar10WithCopies) {
  const std::string row = "\x03" + std::string(3072, '\x40');
  for (int copy = 1; copy <= 6; ++copy) folder.write(fmt::format("names/{}/data_batch_1.bin", copy), row);
  EXPECT_SAYS(refusal("cifar10", pack("names")), "data_batch_5.bin and test_batch.bin, got 1 such files");
  for (int batch = 1; batch <= 5; ++batch) folder.write(fmt::format("same/data_batch_{}.bin", batch), row);
  folder.write("same/test_batch.bin", row);
  EXPECT_SAYS(refusal("cifar10", pack("same")), "expected six different batches, got 1");
  DataConfig config;
  config.task = "cifar10", config.data = (folder.path() / "same").string();
  EXPECT_SAYS(error_of(ExitCode::kData, [&] { load_task(config); }),
              "got the same bytes in data_batch_1.bin and data_batch_2.bin");
}

TEST_F(Unpack, OtherFiles) {
  folder.write("other/readme.txt", "x");
  EXPECT_SAYS(refusal("imdb", pack("other")), "expected reviews under aclImdb/train/pos and neg, found none");
  EXPECT_SAYS(refusal("cifar10", pack("other")), "got 0 such files; is it the binary version of CIFAR-10?");
  EXPECT_SAYS(refusal("imdb", folder.write("page.tar.gz", "<html>not found</html>\n")), "expected a tar archive");
  EXPECT_SAYS(refusal("imdb", folder.path() / "missing.tar.gz"), "missing.tar.gz: expected a tar archive");
  folder.write("only/train/pos/1_9.txt", "x");
  EXPECT_SAYS(refusal("imdb", pack("only")), "aclImdb/test/pos");
}

// Holes cost nothing in an archive: two small ones could take all the memory.
TEST_F(Unpack, FilesOfHoles) {
  for (const char* name : {"aclImdb/train/pos/1_9.txt", "aclImdb/train/pos/2_9.txt", "aclImdb/test/pos/1_9.txt"})
    fs::resize_file(folder.write(name, "x"), 140 << 20);
  const std::string at = folder.path().string();
  ASSERT_EQ(std::system(fmt::format("tar -C '{}' -Sczf '{}/holes.tar.gz' aclImdb", at, at).c_str()), 0);
  EXPECT_LT(fs::file_size(folder.path() / "holes.tar.gz"), 10000u);
  EXPECT_SAYS(refusal("imdb", folder.path() / "holes.tar.gz"), "expected at most 256 MB in this archive, got more");
}

TEST_F(Unpack, CutOffArchive) {
  std::string text;
  for (int i = 0; i < 40000; ++i) text += static_cast<char>('a' + i * i % 23);
  for (const char* split : {"train", "test"}) folder.write(fmt::format("aclImdb/{}/pos/1_9.txt", split), text);
  const std::string whole = slurp(pack("aclImdb"));
  EXPECT_SAYS(refusal("imdb", folder.write("cut.tar.gz", whole.substr(0, whole.size() / 3))), "expected a tar archive");
}

}  // namespace
}  // namespace strata
