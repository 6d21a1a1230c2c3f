#include "util/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#ifdef STRATA_ARCHIVE
#include <archive.h>
#include <archive_entry.h>
#endif

#include "util/error.h"

namespace strata {
namespace {

bool is_compressed(std::string_view head) {
  using namespace std::string_view_literals;
  for (std::string_view magic : {"\x1f\x8b"sv, "\xfd"
                                              "7zXZ\0"sv,
                                 "\x28\xb5\x2f\xfd"sv, "BZh"sv}) {
    if (head.substr(0, magic.size()) == magic) return true;
  }
  return false;
}

#ifdef STRATA_ARCHIVE
std::string unpack(const fs::path& path, const std::string& packed) {
  struct Reader {
    archive* handle = archive_read_new();
    ~Reader() { archive_read_free(handle); }
  } reader;
  auto check = [&](la_ssize_t result) {
    if (result < 0) {
      throw data_error("{}: cannot be unpacked ({}); is the file complete?", path.string(),
                       archive_error_string(reader.handle));
    }
  };
  check(archive_read_support_filter_all(reader.handle));
  check(archive_read_support_format_raw(reader.handle));
  check(archive_read_open_memory(reader.handle, packed.data(), packed.size()));
  archive_entry* entry = nullptr;
  check(archive_read_next_header(reader.handle, &entry));
  std::string content;
  std::string block(1 << 20, '\0');
  while (true) {
    const la_ssize_t size = archive_read_data(reader.handle, block.data(), block.size());
    check(size);
    if (size == 0) return content;
    content.append(block.data(), static_cast<size_t>(size));
  }
}
#else
std::string unpack(const fs::path& path, const std::string&) {
  throw data_error("{}: is compressed, and this build has no libarchive; unpack it first", path.string());
}
#endif

}  // namespace

std::string read_file(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) throw data_error("{}: expected a file, and this is a folder", path.string());
  std::ifstream in(path, std::ios::binary);
  if (!in) throw data_error("{}: cannot be opened ({})", path.string(), std::strerror(errno));
  std::string content{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (in.bad()) throw data_error("{}: cannot be read to its end ({})", path.string(), std::strerror(errno));
  return is_compressed(content) ? unpack(path, content) : content;
}

void write_file(const fs::path& path, std::string_view content) {
  const fs::path beside = path.string() + ".part" + std::to_string(getpid());
  {
    std::ofstream out(beside, std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.flush();
    if (!out) {
      const std::string why = std::strerror(errno);
      std::error_code ignored;
      fs::remove(beside, ignored);
      throw output_error("{}: cannot be written ({}); is the folder writable and the disk not full?", path.string(), why);
    }
  }
  std::error_code error;
  fs::rename(beside, path, error);
  if (error) throw output_error("{}: cannot be put in place ({})", path.string(), error.message());
}

void write_json(const fs::path& path, const nlohmann::ordered_json& value) { write_file(path, value.dump(2) + "\n"); }

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error || !fs::is_directory(path)) {
    throw output_error("{}: the folder cannot be made ({})", path.string(),
                       error ? error.message() : "there is a file of that name");
  }
}

uint32_t crc32_of(std::string_view bytes) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

FolderLock::FolderLock(const fs::path& folder) {
  const std::string path = (folder / ".lock").string();
  descriptor_ = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw output_error("{}: cannot be written ({})", path, std::strerror(errno));
  if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    close(descriptor_);
    throw output_error("{}: another strata process is at work in this folder; wait for it, or use another folder",
                       folder.string());
  }
}

FolderLock::~FolderLock() { close(descriptor_); }

}  // namespace strata
