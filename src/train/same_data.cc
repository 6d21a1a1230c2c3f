#include "train/same_data.h"

#include "util/error.h"
#include "util/progress.h"

namespace strata {
namespace {

// An entry of a record, as far as it is whole.
std::string word(const Json& entry, const char* key) {
  if (!entry.is_object() || !entry.contains(key)) return "unknown";
  const Json& value = entry[key];
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string contents(const Json& entry) {
  const std::string files = entry.is_object() && entry.contains("files") ? word(entry, "files") + " files of " : "";
  return fmt::format("{}{} bytes with SHA-256 {}", files, word(entry, "bytes"), word(entry, "sha256"));
}

bool same_contents(const Json& a, const Json& b) { return contents(a) == contents(b); }

const Json* find(const Json& entries, const std::string& path) {
  for (const Json& entry : entries) {
    if (word(entry, "path") == path) return &entry;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> data_changes(const Json& recorded, const Json& now, bool others) {
  std::vector<std::string> changes;
  if (!recorded.is_array()) return changes;  // an older record
  for (size_t i = 0; i < now.size(); ++i) {
    const std::string path = word(now[i], "path");
    const Json* before = find(recorded, path);
    if (before == nullptr && others) continue;
    if (before == nullptr && i < recorded.size()) before = &recorded[i];  // it may have moved
    if (before == nullptr) {
      changes.push_back(fmt::format("{}: not recorded; there are now {}", path, contents(now[i])));
    } else if (!same_contents(*before, now[i])) {
      const std::string old = word(*before, "path");
      changes.push_back(fmt::format("{}: recorded{} were {}; there are now {}", path, old == path ? "" : " as " + old,
                                    contents(*before), contents(now[i])));
    }
  }
  for (size_t i = now.size(); i < recorded.size() && !others; ++i)
    changes.push_back(
        fmt::format("{}: recorded were {}; it is not read any more", word(recorded[i], "path"), contents(recorded[i])));
  return changes;
}

void check_same_data(const Json& recorded, const Json& now, bool allowed, bool others) {
  const std::vector<std::string> changes = data_changes(recorded, now, others);
  if (changes.empty()) return;
  if (!allowed) {
    throw data_error("the data has changed since the run: {}; restore it, or accept it with --allow-changed-data",
                     fmt::join(changes, "; "));
  }
  for (const std::string& change : changes) Progress().note("warning: the data has changed: " + change);
}

}  // namespace strata
