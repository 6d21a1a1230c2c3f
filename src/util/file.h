// Files and folders: whole reads, atomic writes, locks, checksums.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace strata {

namespace fs = std::filesystem;

// The content of a file; .gz, .xz, .zst and .bz2 files are unpacked. Throws a data error.
std::string read_file(const fs::path& path);
std::string read_raw_file(const fs::path& path);  // without unpacking

// Writes a temporary file and renames it, so that a reader sees the old content or the new, never a part. Throws an
// output error; the old file is unchanged then.
void write_file(const fs::path& path, std::string_view content);
void write_json(const fs::path& path, const nlohmann::ordered_json& value);

// Creates a folder, with its parents. Throws an output error.
void make_folder(const fs::path& path);

uint32_t crc32_of(std::string_view bytes);

// One process per folder: held until this object is destroyed or the process ends.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder);  // throws an output error when another process holds it
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace strata
