#include "util/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#ifdef STRATA_ARCHIVE
#include <archive.h>
#include <archive_entry.h>
#endif

#include "util/atomic_file.h"
#include "util/error.h"

namespace strata {
namespace {

using namespace std::string_view_literals;

constexpr size_t kBlock = 1 << 16;  // bytes that are unpacked at a time
constexpr std::string_view kGzip = "\x1f\x8b"sv;

bool starts_with_any(std::string_view head, std::initializer_list<std::string_view> magics) {
  return std::any_of(magics.begin(), magics.end(), [&](auto magic) { return head.substr(0, magic.size()) == magic; });
}

// gzip by zlib, which checks the checksum; libarchive does not.
std::string unpack_gzip(const fs::path& path, const std::string& packed) {
  z_stream stream = {};
  constexpr int kGzipFormat = 16 + MAX_WBITS;
  if (inflateInit2(&stream, kGzipFormat) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_stream*)> closer(&stream, inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  size_t left = packed.size();
  std::string content, block(kBlock, '\0');
  while (true) {
    if (stream.avail_in == 0 && left > 0) {
      stream.avail_in = static_cast<uInt>(std::min<size_t>(left, 1 << 30));
      left -= stream.avail_in;
    }
    stream.next_out = reinterpret_cast<Bytef*>(block.data());
    stream.avail_out = static_cast<uInt>(block.size());
    const int result = inflate(&stream, Z_NO_FLUSH);
    content.append(block.data(), block.size() - stream.avail_out);
    if (result == Z_STREAM_END) {
      if (stream.avail_in == 0 && left == 0) return content;
      inflateReset(&stream);  // another member follows
    } else if (result != Z_OK) {
      throw data_error("{}: could not unpack ({}); is the file complete?", path.string(),
                       stream.msg != nullptr ? stream.msg : "it ends too early");
    }
  }
}

#ifdef STRATA_ARCHIVE
std::string unpack(const fs::path& path, const std::string& packed) {
  struct Reader {
    archive* handle = archive_read_new();
    ~Reader() { archive_read_free(handle); }
  } reader;
  auto check = [&](la_ssize_t result) {
    if (result < 0) {
      if (archive_errno(reader.handle) == ENOMEM) throw std::bad_alloc();
      const char* why = archive_error_string(reader.handle);
      throw data_error("{}: could not unpack ({}); is the file complete?", path.string(),
                       why != nullptr ? why : "it ends too early");
    }
  };
  check(archive_read_support_filter_all(reader.handle));
  check(archive_read_support_format_raw(reader.handle));
  check(archive_read_support_format_empty(reader.handle));
  check(archive_read_open_memory(reader.handle, packed.data(), packed.size()));
  archive_entry* entry = nullptr;
  const int first = archive_read_next_header(reader.handle, &entry);
  if (first == ARCHIVE_EOF) return {};
  check(first);
  std::string content;
  std::string block(kBlock, '\0');
  while (true) {
    const la_ssize_t size = archive_read_data(reader.handle, block.data(), block.size());
    check(size);
    if (size == 0) return content;
    content.append(block.data(), static_cast<size_t>(size));
  }
}
#else
std::string unpack(const fs::path& path, const std::string&) {
  throw data_error("{}: the file is compressed and this build has no libarchive; unpack it first", path.string());
}
#endif

}  // namespace

void read_blocks(const fs::path& path, const std::function<void(std::string_view)>& work) {
  std::error_code error;
  if (fs::is_directory(path, error)) throw data_error("{}: expected a file, got a folder", path.string());
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw data_error("{}: could not open ({})", path.string(), std::strerror(errno));
  struct Closer {
    int descriptor;
    ~Closer() { close(descriptor); }
  } const closer{descriptor};
  std::string block(1 << 16, '\0');
  while (true) {
    const ssize_t size = read(descriptor, block.data(), block.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) throw data_error("{}: could not read to the end ({})", path.string(), std::strerror(errno));
    if (size == 0) return;
    work(std::string_view(block).substr(0, static_cast<size_t>(size)));
  }
}

std::string read_raw_file(const fs::path& path) {
  std::string content;
  std::error_code error;
  if (const auto size = fs::file_size(path, error); !error) content.reserve(size);
  read_blocks(path, [&](std::string_view block) { content += block; });
  return content;
}

bool is_there(const fs::path& path) {
  std::error_code refused;
  return fs::exists(path, refused);
}

std::string read_file(const fs::path& path) {
  std::string content = read_raw_file(path);
  if (starts_with_any(content, {kGzip})) return unpack_gzip(path, content);
  constexpr auto kXz = "\xfd\x37zXZ\0"sv, kZstd = "\x28\xb5\x2f\xfd"sv, kBzip = "BZh"sv;
  return starts_with_any(content, {kXz, kZstd, kBzip}) ? unpack(path, content) : content;
}

void write_file(const fs::path& path, std::string_view content) {
  try {
    AtomicFile file(path.string());
    file.write(content.data(), content.size());
    file.commit();
  } catch (const WriteError& error) {
    if (error.renaming())
      throw output_error("{}: could not rename the finished file to this name ({})", path.string(), error.what());
    throw output_error("{}: could not write ({}); check that the folder is writable and the disk is not full",
                       path.string(), error.what());
  }
}

void write_json(const fs::path& path, const nlohmann::ordered_json& value) {
  write_file(path, value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  std::error_code kind;
  if (error || !fs::is_directory(path, kind)) {
    throw output_error("{}: could not create the folder ({})", path.string(),
                       error ? error.message() : "a file of that name exists");
  }
}

AppendFile::AppendFile(fs::path path, Make make) : path_(std::move(path)) {
  const int flags = make == Make::kIfMissing ? O_CREAT : 0;
  descriptor_ = open(path_.c_str(), O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC | flags, 0666);
  if (descriptor_ < 0) fail(errno);
}

AppendFile::~AppendFile() { close(descriptor_); }

void AppendFile::fail(int reason) const {
  throw output_error("{}: could not write ({}); is the disk full?", path_.string(), std::strerror(reason));
}

void AppendFile::add(std::string_view entry) {
  struct stat before = {};
  if (fstat(descriptor_, &before) != 0) fail(errno);
  while (!entry.empty()) {
    const ssize_t written = write(descriptor_, entry.data(), entry.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int reason = errno;
      if (ftruncate(descriptor_, before.st_size) != 0) fail(reason);  // readers leave out an entry that is cut
      fail(reason);
    }
    entry.remove_prefix(static_cast<size_t>(written));
  }
}

bool AppendFile::is_removed() const {
  struct stat facts = {};
  return fstat(descriptor_, &facts) != 0 || facts.st_nlink == 0;
}

uint32_t crc32_of(std::string_view bytes) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

int FolderLock::open_locked(const fs::path& folder, const char* name) {
  const std::string path = (folder / name).string();
  const int descriptor = open(path.c_str(), O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (descriptor < 0) throw output_error("{}: could not write ({})", path, std::strerror(errno));
  if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) return descriptor;
  const int reason = errno;
  close(descriptor);
  if (reason != EWOULDBLOCK)
    throw output_error("{}: could not lock ({}); choose a folder on another file system", path, std::strerror(reason));
  return -1;
}

FolderLock::FolderLock(const fs::path& folder) : descriptor_(open_locked(folder, ".lock")) {
  if (descriptor_ < 0)
    throw output_error("{}: another strata process uses this folder; wait for it, or choose another folder",
                       folder.string());
}

std::unique_ptr<FolderLock> FolderLock::try_lock(const fs::path& folder, const char* name) {
  const int descriptor = open_locked(folder, name);
  return std::unique_ptr<FolderLock>(descriptor < 0 ? nullptr : new FolderLock(descriptor));
}

FolderLock::~FolderLock() { close(descriptor_); }

}  // namespace strata
