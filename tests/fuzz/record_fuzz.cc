// libFuzzer target: the JSON files that runs leave are refused, or hold what their readers promise. The first byte
// selects the file.
#include "data/cache.h"
#include "model/model_card.h"
#include "refusal.h"
#include "train/metrics.h"
#include "train/run_folder.h"
#include "train/run_state.h"
#include "train/same_data.h"
#include "util/json.h"

namespace {

using namespace strata;
using fuzz::require;

void check_card(const Json& json) {
  ModelCard card;
  if (!fuzz::accepts([&] { card = ModelCard::from_json(json, "fuzz"); })) return;
  const auto labels = static_cast<int64_t>(card.labels.size());
  require(card.shape.next_token ? card.shape.outputs == card.shape.vocabulary : card.shape.outputs == labels,
          "a name for every output");
  const Json again = Json::parse(card.to_json().dump());
  require(ModelCard::from_json(again, "again").to_json() == again, "a card as it was written");
}

void check_state(const Json& json) {
  RunState state;
  if (!fuzz::accepts([&] { state = RunState::from_json(json, "fuzz"); })) return;
  require(state.step >= 0 && state.stale >= 0 && state.best_step >= -1 && state.train_seconds >= 0, "counts");
  const Json again = Json::parse(state.to_json().dump());
  require(RunState::from_json(again, "again").to_json().dump() == again.dump(), "a state as it was written");
}

void check_run(const fs::path& folder) {
  const RunFolder run{folder};
  fuzz::accepts([&] { read_run_config(run); });
  fuzz::accepts([&] {
    const Json recorded = read_run(run).value("data", Json());
    const Json now = {{{"path", "/a"}, {"bytes", 1}, {"sha256", "aa"}}};
    data_changes(recorded, now);
    data_changes(recorded, now, /*others=*/true);
  });
}

void check_result(const fs::path& folder) {
  fuzz::accepts([&] {
    const Json result = read_result({folder});
    require(result.at("test").at("accuracy").is_number() && result.at("task").is_string(), "the scores of a run");
  });
}

void check_metrics(const fs::path& folder) {
  int64_t damaged = 0;
  for (const Json& line : read_metrics(folder, &damaged)) require(line.is_object(), "lines of metrics");
  constexpr int64_t kLast = 3;
  MetricsLog(folder, kLast, /*tensorboard=*/false).add({{"kind", "train"}, {"step", kLast + 1}});
  damaged = 0;
  const std::vector<Json> kept = read_metrics(folder, &damaged);
  require(damaged == 0 && !kept.empty() && kept.back().at("step") == kLast + 1, "a metrics file that can go on");
  for (const Json& line : kept) require(line.at("step") <= kLast + 1, "no line after the checkpoint");
}

void check_manifest(const fs::path& folder) {
  const SetState state = check_set(folder, /*read_files=*/true);
  require(state.present || !state.problems.empty(), "a set, or a reason");
  for (const std::string& problem : state.problems) fuzz::check_shown(problem);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const fs::path folder = fuzz::memory_folder("run");
  static const std::vector<std::string> names = {"run.json", "result.json", "metrics.jsonl", "manifest.json"};
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  const size_t kind = data[0] % 6;
  if (kind < names.size()) {
    fuzz::Files file("");
    file.files.emplace_back(names[kind], text);
    fuzz::write_files(file, folder, names);
  }
  const Json json = kind < names.size() ? Json() : parse_json<Json>(text);
  if (kind == 0) check_run(folder);
  if (kind == 1) check_result(folder);
  if (kind == 2) fuzz::accepts([&] { check_metrics(folder); });
  if (kind == 3) fuzz::accepts([&] { check_manifest(folder); });
  if (kind == 4 && json.is_object()) check_card(json);
  if (kind == 5 && json.is_object()) check_state(json);
  return 0;
}
