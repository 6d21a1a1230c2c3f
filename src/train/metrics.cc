#include "train/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "data/lines.h"
#include "util/error.h"
#include "util/json.h"

namespace strata {

std::vector<Json> read_metrics(const fs::path& folder, int64_t* damaged) {
  std::vector<Json> lines;
  const fs::path path = folder / "metrics.jsonl";
  if (!fs::exists(path)) return lines;
  for_each_line(read_file(path), [&](std::string_view text, int64_t) {
    Json line = parse_json<Json>(text);
    if (line.is_object()) {
      lines.push_back(std::move(line));
    } else if (damaged != nullptr) {
      ++*damaged;
    }
  });
  return lines;
}

MetricsLog::MetricsLog(const fs::path& folder, int64_t last_step, bool tensorboard) : path_(folder / "metrics.jsonl") {
  std::string kept;
  for (const Json& line : read_metrics(folder)) {
    const bool numbered = line.contains("step") && line["step"].is_number_integer();
    if (numbered && line["step"] <= last_step) kept += line.dump() + "\n";
  }
  write_file(path_, kept);
  descriptor_ = open(path_.c_str(), O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor_ < 0) throw output_error("{}: could not write ({})", path_.string(), std::strerror(errno));
  if (tensorboard) events_ = std::make_unique<EventFile>(folder / "tensorboard");
}

MetricsLog::~MetricsLog() { close(descriptor_); }

void MetricsLog::add(const Json& line) {
  const std::string text = line.dump() + "\n";
  for (std::string_view left = text; !left.empty();) {
    const ssize_t written = write(descriptor_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0)
      throw output_error("{}: could not write ({}); is the disk full?", path_.string(), std::strerror(errno));
    left.remove_prefix(static_cast<size_t>(written));
  }
  struct stat facts = {};
  if (fstat(descriptor_, &facts) != 0 || facts.st_nlink == 0)
    throw output_error("{}: was removed while the run was going on; its files are lost, start it again",
                       path_.string());
  if (events_ == nullptr) return;
  const auto kind = line.at("kind").get<std::string>();
  for (const auto& [key, value] : line.items()) {
    if (value.is_number() && key != "step") events_->add(kind + "/" + key, line.at("step"), value);
  }
}

}  // namespace strata
