// Whole files, folders and locks.
#include "util/file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "data/support.h"
#include "util/atomic_file.h"

namespace strata {
namespace {

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

TEST(Files, AFullDiskKeepsTheOldContent) {
  const TempFolder folder;
  const fs::path path = folder.write("a", "old");
  const std::string message = error_on_full_disk(1000, [&] { write_file(path, std::string(100000, 'x')); });
  EXPECT_SAYS(message, "a: could not write (File too large)");
  EXPECT_EQ(slurp(path), "old");
  EXPECT_EQ(names_in(folder.path()), Names{"a"});
}

TEST(Files, AppendedEntriesAreWholeOrNot) {
  const TempFolder folder;
  const fs::path path = folder.path() / "log";
  EXPECT_SAYS(error_of(ExitCode::kOutput, [&] { AppendFile(path, AppendFile::Make::kNever); }), "No such file");
  AppendFile file(path, AppendFile::Make::kIfMissing);
  file.add("one\n");
  const std::string message = error_on_full_disk(10, [&] { file.add("twice as long\n"); });  // six bytes fit
  EXPECT_SAYS(message, "log: could not write (File too large)");
  EXPECT_EQ(slurp(path), "one\n");
  file.add("three\n");
  EXPECT_EQ(slurp(path), "one\nthree\n");
  EXPECT_FALSE(file.is_removed());
  fs::remove(path);
  EXPECT_TRUE(file.is_removed());
}

// The first page of a process cannot be read.
TEST(Files, AFileThatCannotBeRead) {
  EXPECT_SAYS(error_of(ExitCode::kData, [] { read_raw_file("/proc/self/mem"); }),
              "/proc/self/mem: could not read to the end (Input/output error)");
}

TEST(Files, PartNames) {
  const std::string one = part_name("folder/a.json"), other = part_name("folder/a.json");
  EXPECT_NE(one, other);
  for (const std::string& name : {one, other, std::string("a.part123"), std::string("last.safetensors.writing")})
    EXPECT_TRUE(is_part_name(fs::path(name).filename().string())) << name;
  for (const char* name : {"a", "a.part", ".part12", "imdb.tar.gz.part", "a.parts", "a.part12x", "a.part1.json"})
    EXPECT_FALSE(is_part_name(name)) << name;
}

// What killed processes left goes, what another process is writing stays.
TEST(Files, StrayParts) {
  const TempFolder folder;
  folder.write("a.json", "kept");
  folder.write("a.json.part00c0ffee", "stray");
  folder.write("set.part0123abcd/train.tsv", "stray");
  folder.write("last.safetensors.writing", "stray");
  folder.write("imdb.tar.gz.part", "a download that goes on");
  folder.write("busy.part01234567/train.tsv", "being written");
  {
    const PartLock lock((folder.path() / "busy.part01234567").string());
    remove_stray_parts(folder.path().string());
    EXPECT_EQ(names_in(folder.path()), (Names{"a.json", "busy.part01234567", "imdb.tar.gz.part"}));
  }
  {
    AtomicFile file((folder.path() / "b.json").string());
    file.write("x", 1);
    remove_stray_parts(folder.path().string());
    file.commit();
  }
  EXPECT_EQ(names_in(folder.path()), (Names{"a.json", "b.json", "imdb.tar.gz.part"}));
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
  make_folder(folder.path() / "a/b/c/");  // there already
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
