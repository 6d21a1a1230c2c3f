#include "util/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDigits = "0123456789abcdef";
constexpr const char* kPart = ".part";

// Some file systems cannot write a folder to the disk, and say so; the rename is as safe as it can be there.
bool sync_folder(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  const int descriptor = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return errno == EACCES;
  const bool done = fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP;
  const int reason = errno;
  close(descriptor);
  errno = reason;
  return done;
}

// Removes a part whose lock nobody holds. The lock is held until it is gone, so that its writer, if it has just been
// created, notices and takes another name.
void remove_if_abandoned(const fs::path& path) {
  std::error_code ignored;
  const int descriptor = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return;
  if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) fs::remove_all(path, ignored);
  close(descriptor);
}

// Whether the writer of a new part keeps it: it has its lock, and nobody removed it before.
bool lock_part(int descriptor) {
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;  // a file system without locks
  struct stat facts = {};
  return fstat(descriptor, &facts) == 0 && facts.st_nlink > 0;
}

}  // namespace

std::string part_name(const std::string& path) {
  std::random_device random;
  std::string name = path + kPart;
  for (int digit = 0; digit < 8; ++digit) name += kDigits[random() % 16];
  return name;
}

bool is_part_name(const std::string& name) {
  constexpr const char* kOlder = ".safetensors.writing";
  const size_t older = std::strlen(kOlder);
  if (name.size() > older && name.compare(name.size() - older, older, kOlder) == 0) return true;
  const size_t at = name.rfind(kPart);
  if (at == std::string::npos || at == 0) return false;
  const std::string digits = name.substr(at + std::strlen(kPart));
  return !digits.empty() && digits.find_first_not_of(kDigits) == std::string::npos;
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  for (int attempt = 0; attempt < 100 && descriptor_ < 0; ++attempt) {
    part_ = part_name(path_);
    descriptor_ = open(part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) break;
    if (descriptor_ >= 0 && !lock_part(descriptor_)) {
      close(descriptor_);
      unlink(part_.c_str());
      descriptor_ = -1;
    }
  }
  if (descriptor_ < 0) {
    part_.clear();
    fail();
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!part_.empty()) unlink(part_.c_str());
}

void AtomicFile::fail(bool renaming) { throw WriteError(std::strerror(errno), renaming); }

void AtomicFile::write(const void* bytes, size_t count) {
  const char* at = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t written = ::write(descriptor_, at, std::min<size_t>(count, 1 << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail();
    at += written;
    count -= static_cast<size_t>(written);
  }
}

void AtomicFile::commit() {
  if (fsync(descriptor_) != 0 && errno != EINVAL && errno != EROFS) fail();
  if (std::rename(part_.c_str(), path_.c_str()) != 0) fail(/*renaming=*/true);
  part_.clear();
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (close(descriptor) != 0 || !sync_folder(path_)) fail();
}

PartLock::PartLock(const std::string& path)
    : descriptor_(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)) {
  if (descriptor_ >= 0) flock(descriptor_, LOCK_EX | LOCK_NB);
}

PartLock::~PartLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

void remove_stray_parts(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (is_part_name(entry->path().filename().string())) remove_if_abandoned(entry->path());
  }
}

}  // namespace strata
