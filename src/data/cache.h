// The cache of data sets: a folder per set under XDG_CACHE_HOME/strata (or ~/.cache/strata), each with a manifest of
// its files.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "util/options.h"

namespace strata {

fs::path cache_folder();       // throws a usage error if no environment variable names one
fs::path find_cache_folder();  // empty in that case

// A set is written into a temporary folder, which is renamed when it is complete. A set that exists is complete.
using Files = std::vector<std::pair<std::string, std::string>>;  // name, content
void write_set(const fs::path& folder, const Json& origin, const Files& files);

struct SetState {
  bool present = false;
  Json manifest;                      // {"origin": {..}, "files": {name: {"bytes", "crc32"}}}
  std::vector<std::string> problems;  // missing, shorter or changed files
};
SetState check_set(const fs::path& folder, bool read_files);

}  // namespace strata
