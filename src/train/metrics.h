// The course of a run for machines: one JSON object a line in metrics.jsonl, and TensorBoard events on request.
#pragma once

#include <fstream>
#include <memory>

#include "train/event_file.h"
#include "util/options.h"

namespace strata {

class MetricsLog {
 public:
  // Lines of steps after `last_step` are from a run that was cut off after its last checkpoint: they are taken out, as
  // those steps come again.
  MetricsLog(const fs::path& folder, int64_t last_step, bool tensorboard);

  void add(const Json& line);  // has "kind" and "step"; throws an output error

 private:
  fs::path path_;
  std::ofstream out_;
  std::unique_ptr<EventFile> events_;
};

// The lines of a metrics file; those that were cut off or damaged are left out, and counted in *damaged.
std::vector<Json> read_metrics(const fs::path& folder, int64_t* damaged = nullptr);

}  // namespace strata
