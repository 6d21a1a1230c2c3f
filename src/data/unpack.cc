// Unpacks official archives into sets of the cache.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>
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

// Calls work(name, content) for every wanted file of a tar archive, compressed or not.
void for_each_file(const fs::path& path, const std::function<bool(const std::string&)>& wanted,
                   const std::function<void(const std::string&, std::string)>& work) {
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
  constexpr size_t kLargest = size_t{1} << 28;  // the wanted files of the official archives are smaller
  size_t total = 0;
  std::string block(1 << 16, '\0');
  archive_entry* entry = nullptr;
  while (true) {
    const int result = archive_read_next_header(reader.get(), &entry);
    if (result == ARCHIVE_EOF) return;
    check(result);
    if (archive_entry_filetype(entry) != AE_IFREG) continue;
    const char* const name = archive_entry_pathname(entry);  // null: one that the locale cannot write
    if (name == nullptr || !wanted(name)) continue;
    // The size in the header may be wrong, and a hole costs no bytes in the archive: memory is for what was read.
    std::string content;
    for (size_t size = block.size(); size > 0;) {
      const la_ssize_t got = archive_read_data(reader.get(), block.data(), block.size());
      check(got < 0 ? ARCHIVE_FATAL : got);
      size = static_cast<size_t>(got);
      total += size;
      if (total > kLargest)
        throw data_error("{}: expected at most {} MB in this archive, got more; is it the right archive?",
                         path.string(), kLargest >> 20);
      content.append(block, 0, size);
    }
    work(name, std::move(content));
  }
}

struct Review {
  std::string split;
  int label = 0;
  int64_t id = 0, rating = 0;
};

// What the name aclImdb/SPLIT/SIDE/ID_RATING.txt says; nothing for other names.
std::optional<Review> review_of(const std::string& name) {
  for (const char* split : {"train", "test"}) {
    for (int label = 0; label < 2; ++label) {
      const std::string folder = fmt::format("{}/{}/", split, label == 1 ? "pos" : "neg");
      const size_t at = name.find(folder), bar = name.find('_', at);
      if (at == std::string::npos || bar == std::string::npos) continue;
      return Review{split, label, std::atoll(&name[at + folder.size()]), std::atoll(&name[bar + 1])};
    }
  }
  return std::nullopt;
}

// Every review becomes a row "label, rating, id, text", in the order of ids.
Files imdb_tables(const fs::path& archive) {
  std::map<std::string, std::map<std::pair<int64_t, int>, std::string>> splits;
  auto wanted = [](const std::string& name) { return review_of(name).has_value(); };
  for_each_file(archive, wanted, [&](const std::string& name, std::string content) {
    const Review review = *review_of(name);
    for (char& c : content) c = c == '\n' || c == '\r' ? ' ' : c;
    splits[review.split][{review.id, review.label}] =
        fmt::format("{}\t{}\t{}\t{}\n", review.label, review.rating, review.id, content);
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
  auto wanted = [](const std::string& name) { return fs::path(name).extension() == ".bin"; };
  for_each_file(archive, wanted, [&](const std::string& name, std::string content) {
    files.emplace_back(fs::path(name).filename().string(), std::move(content));
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
