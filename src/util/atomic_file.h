// Files that appear under their names only when they are complete and on the disk. Needs nothing but the standard
// library, so that libstrata_torch can use it, too.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace strata {

// Why a file could not be written: "No space left on device".
class WriteError : public std::runtime_error {
 public:
  WriteError(const std::string& reason, bool renaming) : std::runtime_error(reason), renaming_(renaming) {}
  bool renaming() const { return renaming_; }  // the content was complete, but could not get its name

 private:
  bool renaming_;
};

// A new name beside `path`: PATH.part and eight random hexadecimal digits.
std::string part_name(const std::string& path);
// Whether a name is one of those, also of older versions.
bool is_part_name(const std::string& name);

// Writes to a new file beside `path`, never through a link. commit() writes the file to the disk, gives it its name and
// writes the folder to the disk. Without commit() the old file stays, and nothing is left beside it. All functions
// throw WriteError.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* bytes, size_t count);
  void commit();

 private:
  [[noreturn]] void fail(bool renaming = false);

  std::string path_, part_;
  int descriptor_ = -1;
};

// Holds a lock on a file or folder of a part name while it is being written, so that remove_stray_parts leaves it
// alone.
class PartLock {
 public:
  explicit PartLock(const std::string& path);
  ~PartLock();
  PartLock(const PartLock&) = delete;
  PartLock& operator=(const PartLock&) = delete;

 private:
  int descriptor_ = -1;
};

// Removes what killed processes left in a folder under part names. What another process is writing stays.
void remove_stray_parts(const std::string& folder);

}  // namespace strata
