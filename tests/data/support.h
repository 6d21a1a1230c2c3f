// What the tests of the data layer share: a temporary folder, error messages, tokens as text.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "util/error.h"
#include "util/file.h"

namespace strata {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (fs::temp_directory_path() / "strata_test_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder: " + name);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const fs::path& path() const { return path_; }
  // Writes with plain streams: the tests do not depend on the code they test.
  fs::path write(const std::string& name, std::string_view content) const {
    const fs::path path = path_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
    return path;
  }

 private:
  fs::path path_;
};

// The names of what lies in a folder.
using Names = std::set<std::string>;
inline Names names_in(const fs::path& folder) {
  Names names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

inline std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Sets an environment variable for the lifetime of this object; null removes it.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) had_ = true, old_ = old;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Environment() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  bool had_ = false;
  std::string old_;
};

// The message of the Error that `work` throws, whose kind must be `code`.
template <class Work>
std::string error_of(ExitCode code, Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  return "no error";
}

// The message of an output error of `work` where files may not grow beyond a limit, as on a full disk.
template <class Work>
std::string error_on_full_disk(rlim_t most, Work&& work) {
  rlimit before = {};
  EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {most, before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = error_of(ExitCode::kOutput, work);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_DFL);
  return message;
}

// Byte tokens as text.
inline std::string text_of(std::span<const Token> tokens) {
  std::string text;
  for (const Token token : tokens) text += static_cast<char>(token - 1);
  return text;
}

inline bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// Shows the whole message on failure.
#define EXPECT_SAYS(message, part) EXPECT_TRUE(contains(message, part)) << "message: " << (message)

}  // namespace strata
