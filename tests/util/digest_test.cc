#include "util/digest.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "data/support.h"

namespace strata {
namespace {

// FIPS 180-4's own examples.
TEST(Digest, KnownTexts) {
  EXPECT_EQ(sha256_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_of(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Digest, PiecesDoNotMatter) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 37 % 251);
  for (size_t size = 0; size <= text.size(); ++size) {
    Sha256 whole, parts;
    whole.update(text.substr(0, size));
    for (size_t at = 0; at < size; at += 1 + at % 70) parts.update(text.substr(at, std::min(1 + at % 70, size - at)));
    ASSERT_EQ(whole.hex(), parts.hex()) << size;
  }
}

TEST(Digest, AgreesWithSha256sum) {
  const TempFolder folder;
  if (std::system("command -v sha256sum > /dev/null") != 0) GTEST_SKIP() << "there is no sha256sum here";
  for (const size_t size : {0, 1, 55, 56, 63, 64, 65, 119, 120, 65536, 200001}) {
    std::string text;
    for (size_t i = 0; i < size; ++i) text += static_cast<char>(i * i % 253);
    const fs::path path = folder.write("file", text), sum = folder.path() / "sum";
    ASSERT_EQ(std::system(("sha256sum < " + path.string() + " > " + sum.string()).c_str()), 0);
    EXPECT_EQ(sha256_of_file(path), read_file(sum).substr(0, 64)) << size;
  }
}

TEST(Digest, FilesAndFoldersAreDescribed) {
  const TempFolder folder;
  const fs::path file = folder.write("one.txt", "abc");
  fs::create_directories(folder.path() / "many/inner");
  folder.write("many/a", "1");
  folder.write("many/inner/b", "22");
  const auto before = describe_files({file, folder.path() / "many"});
  EXPECT_EQ(before[0]["path"], fs::absolute(file).string());
  EXPECT_EQ(before[0]["bytes"], 3);
  EXPECT_EQ(before[0]["sha256"], sha256_of("abc"));
  EXPECT_EQ(before[1]["files"], 2);
  EXPECT_EQ(before[1]["bytes"], 3);
  auto digest = [&] { return describe_files({folder.path() / "many"})[0]["sha256"]; };
  EXPECT_EQ(digest(), before[1]["sha256"]);
  folder.write("many/inner/b", "23");
  EXPECT_NE(digest(), before[1]["sha256"]) << "the content changed";
  folder.write("many/inner/b", "22");
  fs::rename(folder.path() / "many/a", folder.path() / "many/c");
  EXPECT_NE(digest(), before[1]["sha256"]) << "a name changed";
}

TEST(Digest, AFileThatIsNotThere) {
  EXPECT_SAYS(error_of(ExitCode::kData, [] { sha256_of_file("/nowhere/file"); }),
              "/nowhere/file: could not open (No such file or directory)");
  EXPECT_SAYS(error_of(ExitCode::kData, [] { sha256_of_file("/proc/self/mem"); }), "could not read to the end");
}

}  // namespace
}  // namespace strata
