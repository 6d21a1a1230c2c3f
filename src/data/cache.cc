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

namespace {

void write_set_files(const fs::path& folder, const Json& origin, const Files& files) {
  Json manifest = {{"origin", origin}, {"files", Json::object()}};
  for (const auto& [name, content] : files) {
    write_file(folder / name, content);
    manifest["files"][name] = {{"bytes", content.size()}, {"crc32", crc32_of(content)}};
  }
  write_json(folder / "manifest.json", manifest);
}

// Whether a folder has exactly the files of a finished set.
bool is_same_set(const fs::path& folder, const fs::path& finished) {
  try {
    const SetState there = check_set(folder, /*read_files=*/true);
    return there.present && there.problems.empty() &&
           there.manifest == check_set(finished, /*read_files=*/false).manifest;
  } catch (const Error&) {  // the manifest is damaged
    return false;
  }
}

// Gives a finished set its name. What has that name, an incomplete set or one that is made again, goes only when the
// new one is in its place. The same set stays where it is: another process that made it at the same time may be reading
// it.
void move_set(const fs::path& finished, const fs::path& folder) {
  std::error_code error, ignored;
  fs::rename(finished, folder, error);  // succeeds if nothing, or an empty folder, has the name
  if (!error || is_same_set(folder, finished)) return;
  const fs::path old = part_name(folder.string());
  fs::rename(folder, old, error);
  const bool was_there = !error;
  fs::rename(finished, folder, error);
  const bool taken = error == std::errc::directory_not_empty || error == std::errc::file_exists;
  if (was_there && error && !taken) fs::rename(old, folder, ignored);
  if (was_there && (!error || taken)) fs::remove_all(old, ignored);
  if (error && !(taken && check_set(folder, false).present))
    throw output_error("{}: could not move the finished set here ({})", folder.string(), error.message());
}

}  // namespace

void write_set(const fs::path& folder, const Json& origin, const Files& files) {
  make_folder(folder.parent_path());
  remove_stray_parts(folder.parent_path().string());
  const fs::path beside = part_name(folder.string());
  make_folder(beside);
  const PartLock lock(beside.string());
  try {
    write_set_files(beside, origin, files);
    move_set(beside, folder);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(beside, ignored);
    throw;
  }
  std::error_code ignored;
  fs::remove_all(beside, ignored);  // if another process was faster
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
