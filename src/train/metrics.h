// The metrics of a run: one JSON object per line in metrics.jsonl, and TensorBoard events on request.
#pragma once

#include <memory>

#include "train/event_file.h"
#include "util/options.h"

namespace strata {

class MetricsLog {
 public:
  // Removes the lines of steps after `last_step`: a run that ended after its last checkpoint repeats those steps.
  MetricsLog(const fs::path& folder, int64_t last_step, bool tensorboard);

  void add(const Json& line);  // has "kind" and "step"; throws an output error, also if the file was removed

 private:
  fs::path path_;
  std::unique_ptr<AppendFile> lines_;
  std::unique_ptr<EventFile> events_;
};

// The lines of a metrics file. Damaged lines are left out, and counted in *damaged.
std::vector<Json> read_metrics(const fs::path& folder, int64_t* damaged = nullptr);

}  // namespace strata
