// Unpacks official archives into sets of the cache.
#include <functional>
#include <map>
#include <set>

#include "data/cache.h"
#include "data/download.h"
#include "util/error.h"

#ifdef STRATA_ARCHIVE
#include <archive.h>
#include <archive_entry.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#endif

namespace strata {
#ifdef STRATA_ARCHIVE
namespace {

// Calls work(name, content) for every file of a tar archive, compressed or not.
void for_each_file(const fs::path& path, const std::function<void(const std::string&, std::string)>& work) {
  const std::unique_ptr<archive, int (*)(archive*)> reader(archive_read_new(), archive_read_free);
  auto check = [&](la_ssize_t result) {
    if (result < ARCHIVE_WARN) {
      const char* why = archive_error_string(reader.get());
      const int number = archive_errno(reader.get());
      if (number == ENOMEM) throw std::bad_alloc();
      if (number == EIO)  // the file may be whole
        throw output_error("{}: could not read ({})", path.string(), std::strerror(number));
      throw data_error("{}: expected a tar archive, got another or a damaged file ({})", path.string(),
                       why != nullptr ? why : "it ends too early");
    }
  };
  check(archive_read_support_filter_all(reader.get()));
  check(archive_read_support_format_tar(reader.get()));
  check(archive_read_open_filename(reader.get(), path.c_str(), 1 << 20));
  archive_entry* entry = nullptr;
  while (true) {
    const int result = archive_read_next_header(reader.get(), &entry);
    if (result == ARCHIVE_EOF) return;
    check(result);
    if (archive_entry_filetype(entry) != AE_IFREG) continue;
    constexpr la_int64_t kLargest = 1 << 28;
    if (archive_entry_size(entry) > kLargest)
      throw data_error(
          "{}: expected files of at most 256 MB in this archive, got a larger one; is it the right archive?",
          path.string());
    std::string content(static_cast<size_t>(archive_entry_size(entry)), '\0');
    const la_ssize_t size = archive_read_data(reader.get(), content.data(), content.size());
    check(size);
    content.resize(static_cast<size_t>(size));
    work(archive_entry_pathname(entry), std::move(content));
  }
}

// aclImdb/SPLIT/SIDE/ID_RATING.txt becomes a row "label, rating, id, text", in the order of ids.
Files imdb_tables(const fs::path& archive) {
  std::map<std::string, std::map<std::pair<int64_t, int>, std::string>> splits;
  for_each_file(archive, [&](const std::string& name, std::string content) {
    for (const char* split : {"train", "test"}) {
      for (int label = 0; label < 2; ++label) {
        const std::string folder = fmt::format("{}/{}/", split, label == 1 ? "pos" : "neg");
        const size_t at = name.find(folder);
        if (at == std::string::npos) continue;
        const std::string file = name.substr(at + folder.size());
        const size_t bar = file.find('_');
        if (bar == std::string::npos) continue;
        for (char& c : content) c = c == '\n' || c == '\r' ? ' ' : c;
        const int64_t id = std::atoll(file.c_str());
        splits[split][{id, label}] =
            fmt::format("{}\t{}\t{}\t{}\n", label, std::atoi(file.c_str() + bar + 1), id, content);
      }
    }
  });
  Files files;
  for (const char* split : {"train", "test"}) {
    if (splits[split].empty()) {
      throw data_error("{}: expected reviews under aclImdb/{}/pos and neg, found none; is it the IMDB archive?",
                       archive.string(), split);
    }
    std::string table;
    for (const auto& [key, row] : splits[split]) table += row;
    files.emplace_back(fmt::format("{}.tsv", split), std::move(table));
  }
  return files;
}

Files cifar10_batches(const fs::path& archive) {
  Files files;
  for_each_file(archive, [&](const std::string& name, std::string content) {
    const std::string file = fs::path(name).filename().string();
    if (fs::path(file).extension() == ".bin") files.emplace_back(file, std::move(content));
  });
  std::set<std::string> names;
  std::set<std::string_view> contents;
  for (const auto& [name, content] : files) {
    const bool batch = name.size() == 16 && name.rfind("data_batch_", 0) == 0 && name[11] >= '1' && name[11] <= '5';
    if (batch || name == "test_batch.bin") names.insert(name), contents.insert(content);
  }
  constexpr size_t kBatches = 6;
  if (files.size() != kBatches || names.size() != kBatches) {
    throw data_error(
        "{}: expected data_batch_1.bin to data_batch_5.bin and test_batch.bin, got {} such files; is it the "
        "binary version of CIFAR-10?",
        archive.string(), names.size());
  }
  if (contents.size() != kBatches)
    throw data_error("{}: expected six different batches, got {}; is it the binary version of CIFAR-10?",
                     archive.string(), contents.size());
  return files;
}

}  // namespace

void unpack_set(const DownloadSource& source, const fs::path& archive, const fs::path& folder) {
  const Files files = std::string(source.task) == "imdb" ? imdb_tables(archive) : cifar10_batches(archive);
  write_set(folder, {{"task", source.task}, {"url", source.url}, {"digest", source.digest}}, files);
}
#else
void unpack_set(const DownloadSource&, const fs::path& archive, const fs::path&) {
  throw data_error("{}: this build cannot unpack archives (built without libarchive)", archive.string());
}
#endif

}  // namespace strata
