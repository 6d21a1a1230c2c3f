// What the fuzz targets share: conditions, refusals, files and folders that never touch a disk.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace strata::fuzz {

inline void require(bool held, const char* what = "") {
  if (held) return;
  std::fprintf(stderr, "expected: %s\n", what);
  std::abort();
}

// A message has words, and repeats only a part of what it is about.
inline void check_message(std::string_view message) {
  constexpr size_t kLongest = 3000;
  if (!message.empty() && message.size() <= kLongest) return;
  std::fprintf(stderr, "a message of %zu bytes: %.*s\n", message.size(), 200, std::string(message).c_str());
  std::abort();
}

// A file in memory.
inline std::string memory_file(std::string_view bytes) {
  static const int descriptor = memfd_create("fuzz", MFD_CLOEXEC);
  require(descriptor >= 0 && ftruncate(descriptor, 0) == 0, "a file in memory");
  require(pwrite(descriptor, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "room in memory");
  return "/proc/self/fd/" + std::to_string(descriptor);
}

// A folder in memory, if the machine has one; the process has one of each name.
inline std::filesystem::path memory_folder(const std::string& name) {
  namespace fs = std::filesystem;
  static const std::string root = [] {
    std::string path =
        (fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path().string()) + "/fuzz_XXXXXX";
    require(mkdtemp(path.data()) != nullptr, "a folder for files");
    static std::string made = path;
    std::atexit([] {
      std::error_code ignored, again;
      fs::remove_all(made, ignored);
    });
    return path;
  }();
  const fs::path folder = fs::path(root) / name;
  fs::create_directories(folder);
  return folder;
}

// The files of an input: "@@ NAME" on a line of its own begins each; what stands before the first line is `head`.
struct Files {
  std::string head;
  std::vector<std::pair<std::string, std::string>> files;  // name, content

  explicit Files(std::string_view input) {
    constexpr std::string_view kMark = "@@ ";
    std::string* to = &head;
    while (!input.empty()) {
      const size_t end = std::min(input.find('\n'), input.size() - 1) + 1;
      const std::string_view line = input.substr(0, end);
      if (line.substr(0, kMark.size()) == kMark && line.back() == '\n') {
        files.emplace_back(line.substr(kMark.size(), line.size() - kMark.size() - 1), "");
        to = &files.back().second;
      } else {
        *to += line;
      }
      input.remove_prefix(end);
    }
  }
};

// Puts the files of an input that have one of these names into a folder, and removes the others of these names.
inline void write_files(const Files& input, const std::filesystem::path& folder,
                        const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string path = folder / name;
    const auto found =
        std::find_if(input.files.begin(), input.files.end(), [&](const auto& f) { return f.first == name; });
    if (found == input.files.end()) {
      unlink(path.c_str());
      continue;
    }
    const int descriptor = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    require(descriptor >= 0, "a file in the folder");
    require(write(descriptor, found->second.data(), found->second.size()) == static_cast<ssize_t>(found->second.size()),
            "room for a file");
    close(descriptor);
  }
}

}  // namespace strata::fuzz
