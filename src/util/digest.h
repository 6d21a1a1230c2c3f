// SHA-256 of files and folders: the record of a run uses it to identify its data.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "util/file.h"

namespace strata {

// FIPS 180-4, incrementally: update() any number of times, then hex() once.
class Sha256 {
 public:
  Sha256();
  void update(std::string_view bytes);
  std::string hex();

 private:
  void add_block(const unsigned char* block);

  uint32_t state_[8];
  unsigned char pending_[64];
  uint64_t bytes_ = 0;
};

std::string sha256_of(std::string_view bytes);
std::string sha256_of_file(const fs::path& path);  // throws a data error

// What the record of a command says about the data it read: absolute path, bytes and SHA-256 of every file. A folder is
// one entry: the digest of its files' names and digests, in the order of their names.
nlohmann::ordered_json describe_files(const std::vector<fs::path>& paths);

}  // namespace strata
