#include "train/checkpoint.h"

#include <map>

#include "util/error.h"

namespace strata {
namespace {

constexpr const char* kStateKey = "strata.state";

}  // namespace

void save_training(const fs::path& path, AdamW& optimizer, const ModelCard& card, RunState state) {
  NamedTensors tensors;
  for (const AdamW::Slot& slot : optimizer.slots()) {
    tensors.emplace_back("model/" + slot.name, slot.parameter);
    if (!slot.mean.defined()) continue;  // no step yet
    tensors.emplace_back("exp_avg/" + slot.name, slot.mean);
    tensors.emplace_back("exp_avg_sq/" + slot.name, slot.square);
    state.adamw_steps[slot.name] = slot.steps;
  }
  save_tensors(path, tensors, {{kCardKey, card.to_json().dump()}, {kStateKey, state.to_json().dump()}});
}

RunState load_training(const fs::path& path, SequenceModel& model, AdamW& optimizer, const ModelCard& card) {
  const SafetensorsFile file = load_tensors(path);
  Json stored_card = header_json(file, kCardKey, path), own_card = card.to_json();
  if (Json& shape = stored_card["shape"]; shape.is_object()) shape.emplace("frozen", 0);  // an older file has none
  for (Json* one : {&stored_card, &own_card}) one->erase(kColumnsKey);                    // an older file has none
  if (stored_card != own_card) {
    throw output_error("{}: expected a checkpoint of this run, got one of another model or task", path.string());
  }
  RunState state = RunState::from_json(header_json(file, kStateKey, path), path.string());
  const std::map<std::string, torch::Tensor> stored(file.tensors.begin(), file.tensors.end());
  copy_weights(stored, "model/", model->named_parameters(), path);
  for (AdamW::Slot& slot : optimizer.slots()) {
    const auto steps = state.adamw_steps.find(slot.name);
    if (steps == state.adamw_steps.end()) continue;
    auto moment = [&](const char* prefix) {
      const auto found = stored.find(prefix + slot.name);
      if (found == stored.end() || found->second.sizes() != slot.parameter.sizes() ||
          found->second.scalar_type() != slot.parameter.scalar_type()) {
        throw output_error("{}: expected the AdamW state of {} in the shape and type of its weights, got {}",
                           path.string(), slot.name, found == stored.end() ? "none" : "another");
      }
      return found->second.to(slot.parameter.device());
    };
    slot.steps = steps->second;
    slot.mean = moment("exp_avg/");
    slot.square = moment("exp_avg_sq/");
  }
  return state;
}

}  // namespace strata
