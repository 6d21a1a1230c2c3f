#include "train/metrics.h"

#include "util/error.h"
#include "util/json.h"
#include "util/lines.h"

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
  lines_ = std::make_unique<AppendFile>(path_, AppendFile::Make::kNever);
  if (tensorboard) events_ = std::make_unique<EventFile>(folder / "tensorboard");
}

void MetricsLog::add(const Json& line) {
  lines_->add(line.dump() + "\n");
  if (lines_->is_removed())
    throw output_error("{}: was removed while the run was going on; its files are lost, start it again",
                       path_.string());
  if (events_ == nullptr) return;
  const auto kind = line.at("kind").get<std::string>();
  for (const auto& [key, value] : line.items()) {
    if (value.is_number() && key != "step") events_->add(kind + "/" + key, line.at("step"), value);
  }
}

}  // namespace strata
