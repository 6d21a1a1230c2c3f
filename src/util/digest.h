// SHA-256 of files and folders: the record of a run uses it to identify its data.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "util/file.h"
#include "util/sha256.h"

namespace strata {

std::string sha256_of_file(const fs::path& path);  // throws a data error

// What the record of a command says about the data it read: absolute path, bytes and SHA-256 of every file. A folder is
// one entry: the digest of its files' names and digests, in the order of their names.
nlohmann::ordered_json describe_files(const std::vector<fs::path>& paths);

}  // namespace strata
