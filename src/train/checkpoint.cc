#include "train/checkpoint.h"

#include <map>

#include "util/error.h"

namespace strata {
namespace {

constexpr const char* kStateKey = "strata.state";

}  // namespace

void save_training(const fs::path& path, AdamW& optimizer, const ModelCard& card, const Json& state) {
  NamedTensors tensors;
  Json steps = Json::object();
  for (const AdamW::Slot& slot : optimizer.slots()) {
    tensors.emplace_back("model/" + slot.name, slot.parameter);
    if (!slot.mean.defined()) continue;  // no step yet
    tensors.emplace_back("exp_avg/" + slot.name, slot.mean);
    tensors.emplace_back("exp_avg_sq/" + slot.name, slot.square);
    steps[slot.name] = slot.steps;
  }
  Json whole = state;
  whole["adamw_steps"] = steps;
  save_tensors(path, tensors, {{kCardKey, card.to_json().dump()}, {kStateKey, whole.dump()}});
}

Json load_training(const fs::path& path, SequenceModel& model, AdamW& optimizer, const ModelCard& card) {
  const SafetensorsFile file = load_tensors(path);
  Json stored_card = header_json(file, kCardKey, path), own_card = card.to_json();
  for (Json* one : {&stored_card, &own_card}) one->erase(kColumnsKey);  // an older file has none
  if (stored_card != own_card) {
    throw output_error("{}: expected a checkpoint of this run, got one of another model or task", path.string());
  }
  Json state = header_json(file, kStateKey, path);
  const std::map<std::string, torch::Tensor> stored(file.tensors.begin(), file.tensors.end());
  copy_weights(stored, "model/", model, path);
  for (AdamW::Slot& slot : optimizer.slots()) {
    if (!state["adamw_steps"].contains(slot.name)) continue;
    const auto mean = stored.find("exp_avg/" + slot.name), square = stored.find("exp_avg_sq/" + slot.name);
    if (mean == stored.end() || square == stored.end()) {
      throw output_error("{}: expected the AdamW state of {}, got none", path.string(), slot.name);
    }
    slot.steps = state["adamw_steps"][slot.name].get<int64_t>();
    slot.mean = mean->second.to(slot.parameter.device());
    slot.square = square->second.to(slot.parameter.device());
  }
  state.erase("adamw_steps");
  return state;
}

}  // namespace strata
