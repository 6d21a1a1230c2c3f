// Files and folders: whole reads, atomic writes, locks, checksums.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace strata {

namespace fs = std::filesystem;

bool is_there(const fs::path& path);  // false also for a name that the file system refuses

// The content of a file; .gz, .xz, .zst and .bz2 files are unpacked. Throws a data error.
std::string read_file(const fs::path& path);
std::string read_raw_file(const fs::path& path);  // without unpacking
// Passes the content to `work`, block by block.
void read_blocks(const fs::path& path, const std::function<void(std::string_view)>& work);

// Writes a temporary file and renames it, so that a reader sees the old content or the new, never a part. Throws an
// output error; the old file is unchanged then.
void write_file(const fs::path& path, std::string_view content);
void write_json(const fs::path& path, const nlohmann::ordered_json& value);

// Creates a folder, with its parents. Throws an output error.
void make_folder(const fs::path& path);

// A file that grows by whole entries, never through a link. An entry that cannot be written leaves no part of itself.
class AppendFile {
 public:
  enum class Make { kIfMissing, kNever };
  AppendFile(fs::path path, Make make);  // throws an output error, as add() does
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void add(std::string_view entry);
  bool is_removed() const;  // its name is gone

 private:
  [[noreturn]] void fail(int reason) const;

  fs::path path_;
  int descriptor_ = -1;
};

uint32_t crc32_of(std::string_view bytes);

// One process per folder: held until this object is destroyed or the process ends.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder);  // throws an output error when another process holds it
  // Null when another process holds the lock of that name in the folder. name: ".lock" is the one above
  static std::unique_ptr<FolderLock> try_lock(const fs::path& folder, const char* name = ".lock");
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  explicit FolderLock(int descriptor) : descriptor_(descriptor) {}
  static int open_locked(const fs::path& folder, const char* name);  // -1 when another process holds it

  int descriptor_ = -1;
};

}  // namespace strata
