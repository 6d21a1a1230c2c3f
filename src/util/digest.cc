#include "util/digest.h"

#include <algorithm>

namespace strata {
namespace {

nlohmann::ordered_json describe_folder(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  Sha256 digest;
  uint64_t bytes = 0;
  for (const fs::path& file : files) {
    digest.update(fs::relative(file, folder).string() + '\0' + sha256_of_file(file) + '\n');
    bytes += fs::file_size(file);
  }
  return {{"path", folder.string()}, {"files", files.size()}, {"bytes", bytes}, {"sha256", digest.hex()}};
}

}  // namespace

std::string sha256_of_file(const fs::path& path) {
  Sha256 digest;
  read_blocks(path, [&](std::string_view block) { digest.update(block); });
  return digest.hex();
}

nlohmann::ordered_json describe_files(const std::vector<fs::path>& paths) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const fs::path& given : paths) {
    const fs::path path = fs::absolute(given).lexically_normal();
    if (fs::is_directory(path)) {
      all.push_back(describe_folder(path));
    } else {
      all.push_back({{"path", path.string()}, {"bytes", fs::file_size(path)}, {"sha256", sha256_of_file(path)}});
    }
  }
  return all;
}

}  // namespace strata
