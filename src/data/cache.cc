#include "data/cache.h"

#include <cstdlib>

#include "util/atomic_file.h"
#include "util/error.h"
#include "util/json.h"
#include "util/text.h"

namespace strata {

fs::path find_cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return fs::path(cache) / "strata";
  }
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? fs::path() : fs::path(home) / ".cache" / "strata";
}

fs::path cache_folder() {
  fs::path folder = find_cache_folder();
  if (folder.empty())
    throw usage_error("cache: expected HOME or XDG_CACHE_HOME to name a folder, got neither; set XDG_CACHE_HOME");
  return folder;
}

void write_set(const fs::path& folder, const Json& origin, const Files& files) {
  make_folder(folder.parent_path());
  remove_stray_parts(folder.parent_path().string());
  const fs::path beside = part_name(folder.string());
  make_folder(beside);
  const PartLock lock(beside.string());
  Json manifest = {{"origin", origin}, {"files", Json::object()}};
  try {
    for (const auto& [name, content] : files) {
      write_file(beside / name, content);
      manifest["files"][name] = {{"bytes", content.size()}, {"crc32", crc32_of(content)}};
    }
    write_json(beside / "manifest.json", manifest);
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove_all(beside, ignored);
    throw;
  }
  std::error_code error;
  fs::remove_all(folder, error);  // an incomplete set, or one that is made again
  fs::rename(beside, folder, error);
  if (error) {
    std::error_code ignored;
    fs::remove_all(beside, ignored);
    // Two processes may make the same set at once; the first to finish wins.
    if (!check_set(folder, false).present)
      throw output_error("{}: could not move the finished set here ({})", folder.string(), error.message());
  }
}

SetState check_set(const fs::path& folder, bool read_files) {
  SetState state;
  if (!fs::exists(folder / "manifest.json")) return state;
  state.manifest = parse_json<Json>(read_file(folder / "manifest.json"));
  if (!state.manifest.is_object() || !state.manifest.contains("files") || !state.manifest["files"].is_object()) {
    state.problems.push_back("manifest.json is damaged");
    return state;
  }
  state.present = true;
  for (const auto& [name, facts] : state.manifest["files"].items()) {
    const fs::path path = folder / name;
    std::error_code error;
    const auto size = fs::file_size(path, error);
    const bool known = name.find('/') == std::string::npos && facts.is_object() && facts.contains("bytes") &&
                       facts["bytes"].is_number_unsigned() && facts.contains("crc32") &&
                       facts["crc32"].is_number_unsigned();
    if (!known) {
      state.problems.push_back(fmt::format("manifest.json is damaged at {}", shown(name)));
    } else if (error) {
      state.problems.push_back(fmt::format("{} is missing", shown(name)));
    } else if (size != facts["bytes"].get<uint64_t>()) {
      state.problems.push_back(
          fmt::format("{} has {} bytes instead of {}", shown(name), size, facts["bytes"].get<uint64_t>()));
    } else if (read_files && crc32_of(read_raw_file(path)) != facts["crc32"].get<uint32_t>()) {
      state.problems.push_back(fmt::format("{} has changed since it was written", shown(name)));
    }
  }
  return state;
}

}  // namespace strata
