// Sets in the cache, whole files and locks.
#include "data/cache.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <set>

#include "data/support.h"

namespace strata {
namespace {

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}
using Names = std::set<std::string>;
using Problems = std::vector<std::string>;

TEST(Cache, FolderFollowsTheEnvironment) {
  {
    const Environment cache("XDG_CACHE_HOME", "/somewhere/cache");
    EXPECT_EQ(cache_folder(), "/somewhere/cache/strata");
  }
  const Environment cache("XDG_CACHE_HOME", "");  // empty counts as not set
  {
    const Environment home("HOME", "/home/me");
    EXPECT_EQ(cache_folder(), "/home/me/.cache/strata");
  }
  const Environment home("HOME", nullptr);
  EXPECT_SAYS(error_of(ExitCode::kUsage, [] { cache_folder(); }), "set XDG_CACHE_HOME");
}

TEST(Cache, SetsAreWhole) {
  const TempFolder folder;
  const fs::path set = folder.path() / "made" / "set";
  EXPECT_FALSE(check_set(set, true).present);
  write_set(set, {{"task", "t"}, {"seed", 3}}, {{"a.tsv", "123456789"}, {"b.bin", std::string(3, '\0')}});
  EXPECT_EQ(names_in(set), (Names{"a.tsv", "b.bin", "manifest.json"}));
  EXPECT_EQ(names_in(set.parent_path()), Names{"set"});  // nothing is left beside it
  EXPECT_EQ(slurp(set / "b.bin"), std::string(3, '\0'));
  const SetState state = check_set(set, true);
  EXPECT_TRUE(state.present);
  EXPECT_EQ(state.problems, Problems{});
  EXPECT_EQ(state.manifest["origin"]["seed"], 3);
  EXPECT_EQ(state.manifest["files"]["a.tsv"]["bytes"], 9);
  EXPECT_EQ(state.manifest["files"]["a.tsv"]["crc32"], 0xcbf43926U);  // the check value of CRC-32
}

TEST(Cache, FaultsOfSetsAreFound) {
  const TempFolder folder;
  const fs::path set = folder.path() / "set";
  const Files files = {{"gone", "1"}, {"short", "123"}, {"changed", "abc"}, {"whole", "x"}};
  write_set(set, {}, files);
  fs::remove(set / "gone");
  folder.write("set/short", "12");
  folder.write("set/changed", "abd");
  EXPECT_EQ(check_set(set, false).problems, (Problems{"gone is missing", "short has 2 bytes instead of 3"}));
  EXPECT_EQ(check_set(set, true).problems, (Problems{"gone is missing", "short has 2 bytes instead of 3",
                                                     "changed has changed since it was written"}));
  EXPECT_TRUE(check_set(set, true).present);
  write_set(set, {}, files);  // replaces the existing set
  EXPECT_EQ(check_set(set, true).problems, Problems{});
}

TEST(Cache, DamagedManifest) {
  const TempFolder folder;
  for (const char* manifest : {"", "{\"files\": {\"a\"", "[]", "{}"}) {
    folder.write("manifest.json", manifest);
    const SetState state = check_set(folder.path(), true);
    EXPECT_FALSE(state.present) << manifest;
    EXPECT_EQ(state.problems, Problems{"manifest.json is damaged"}) << manifest;
  }
}

// JSON of another shape is reported as damage, not as an exception of the JSON library.
TEST(Cache, ManifestOfAnotherShape) {
  const TempFolder folder;
  folder.write("a", "x");
  for (const char* manifest : {R"({"files": {"a": 3}})", R"({"files": {"a": {"bytes": "1"}}})"}) {
    folder.write("manifest.json", manifest);
    EXPECT_NO_THROW(EXPECT_FALSE(check_set(folder.path(), true).problems.empty())) << manifest;
  }
}

TEST(Cache, SetThatCannotBeWrittenLeavesNothing) {
  const TempFolder folder;
  folder.write("file", "x");
  EXPECT_SAYS(error_of(ExitCode::kOutput, [&] { write_set(folder.path() / "file" / "set", {}, {}); }),
              "could not create the folder");
  // A name inside a missing folder fails after the first file was written.
  EXPECT_SAYS(error_of(ExitCode::kOutput,
                       [&] {
                         write_set(folder.path() / "set", {}, {{"a", "1"}, {"no/b", "2"}});
                       }),
              "could not write");
  EXPECT_EQ(names_in(folder.path()), Names{"file"});
}

// ------------------------------------------------------------------------------------------------- files

TEST(Files, WritesAreWholeOrNot) {
  const TempFolder folder;
  const fs::path path = folder.write("a", "old");
  write_file(path, std::string("new\0\n", 5));
  EXPECT_EQ(slurp(path), std::string("new\0\n", 5));
  EXPECT_EQ(names_in(folder.path()), Names{"a"});
  EXPECT_SAYS(error_of(ExitCode::kOutput, [&] { write_file(path / "below", "x"); }),
              "a/below: could not write (Not a directory)");
  EXPECT_SAYS(error_of(ExitCode::kOutput, [&] { write_file(folder.path() / "none" / "b", "x"); }),
              "No such file or directory");
  EXPECT_EQ(slurp(path), std::string("new\0\n", 5));
  write_json(path, {{"b", 1}, {"a", {1, 2}}});
  EXPECT_EQ(slurp(path), "{\n  \"b\": 1,\n  \"a\": [\n    1,\n    2\n  ]\n}\n");
}

// The disk is full: the device of that name stands where the file beside the target would.
TEST(Files, AFullDiskKeepsTheOldContent) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full here";
  const TempFolder folder;
  const fs::path path = folder.write("a", "old");
  fs::create_symlink("/dev/full", path.string() + ".part" + std::to_string(getpid()));
  EXPECT_SAYS(error_of(ExitCode::kOutput, [&] { write_file(path, std::string(100000, 'x')); }),
              "No space left on device");
  EXPECT_EQ(slurp(path), "old");
  EXPECT_EQ(names_in(folder.path()), Names{"a"});
}

TEST(Files, ARenameThatFailsLeavesNothingBeside) {
  const TempFolder folder;
  folder.write("target/inside", "kept");
  EXPECT_SAYS(error_of(ExitCode::kOutput, [&] { write_file(folder.path() / "target", "x"); }),
              "could not rename the finished file");
  EXPECT_EQ(slurp(folder.path() / "target/inside"), "kept");
  EXPECT_EQ(names_in(folder.path()), Names{"target"});
}

TEST(Files, Folders) {
  const TempFolder folder;
  make_folder(folder.path() / "a/b/c");
  EXPECT_TRUE(fs::is_directory(folder.path() / "a/b/c"));
  make_folder(folder.path() / "a/b/c/");  // exists
  folder.write("file", "x");
  EXPECT_SAYS(error_of(ExitCode::kOutput, [&] { make_folder(folder.path() / "file"); }),
              "file: could not create the folder");
  EXPECT_SAYS(error_of(ExitCode::kOutput, [&] { make_folder(folder.path() / "file/below"); }),
              "could not create the folder");
}

// ------------------------------------------------------------------------------------------------- locks

TEST(FolderLock, RefusesASecondHolder) {
  const TempFolder folder;
  auto lock_again = [&] { FolderLock again(folder.path()); };
  {
    const FolderLock lock(folder.path());
    EXPECT_SAYS(error_of(ExitCode::kOutput, lock_again), "another strata process uses this folder");
    const TempFolder other;
    const FolderLock elsewhere(other.path());
  }
  EXPECT_NO_THROW(lock_again());
  EXPECT_SAYS(error_of(ExitCode::kOutput, [&] { FolderLock none(folder.path() / "none"); }), "could not write");
}

TEST(FolderLock, GoesWithItsProcess) {
  const TempFolder folder;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      const FolderLock lock(folder.path());
      if (write(ready[1], "y", 1) != 1) _exit(1);
      while (true) pause();
    } catch (...) {
      _exit(1);
    }
  }
  close(ready[1]);
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);  // the child holds it
  auto lock = [&] { FolderLock mine(folder.path()); };
  EXPECT_SAYS(error_of(ExitCode::kOutput, lock), "another strata process");
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_NO_THROW(lock());
  close(ready[0]);
}

}  // namespace
}  // namespace strata
