// Sets in the cache.
#include "data/cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "data/support.h"

namespace strata {
namespace {

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

// Processes that start together make the same set; one that is done must not lose what it reads.
TEST(Cache, TheSameSetStaysInPlace) {
  const TempFolder folder;
  const fs::path set = folder.path() / "set";
  const Files files = {{"a.tsv", "some rows"}};
  auto place = [&] {
    struct stat facts = {};
    EXPECT_EQ(stat(set.c_str(), &facts), 0);
    return facts.st_ino;
  };
  write_set(set, {{"seed", 1}}, files);
  const ino_t first = place();
  write_set(set, {{"seed", 1}}, files);
  EXPECT_EQ(place(), first);
  folder.write("set/a.tsv", "some cows");  // as long, but other bytes
  write_set(set, {{"seed", 1}}, files);
  EXPECT_NE(place(), first);
  EXPECT_TRUE(check_set(set, true).problems.empty());
  folder.write("set/manifest.json", "{");
  write_set(set, {{"seed", 1}}, files);
  EXPECT_TRUE(check_set(set, true).problems.empty());
  EXPECT_EQ(names_in(folder.path()), Names{"set"});
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

// A manifest names files of its own folder.
TEST(Cache, ManifestThatPointsElsewhere) {
  const TempFolder folder;
  folder.write("secret", "");
  folder.write("set/manifest.json", R"({"files": {"../secret": {"bytes": 0, "crc32": 0}}})");
  EXPECT_EQ(check_set(folder.path() / "set", true).problems, Problems{"manifest.json is damaged at ../secret"});
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

}  // namespace
}  // namespace strata
