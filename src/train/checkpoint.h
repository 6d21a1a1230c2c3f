// Models and training states on disk. A model file is a safetensors file whose header carries everything needed to use
// it.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "model/safetensors.h"
#include "model/sequence_model.h"
#include "train/adamw.h"
#include "train/config.h"

namespace strata {

// What stands in the header beside the weights.
struct ModelCard {
  ModelConfig config;
  ModelShape shape;
  std::string task;
  std::string tree;                 // kind of tree its rows have
  std::vector<std::string> labels;  // of its classes
  std::vector<std::string> words;   // its vocabulary, where tokens are words

  Json to_json() const;
  static ModelCard from_json(const Json& json, const std::string& where);
};

struct LoadedModel {
  ModelCard card;
  SequenceModel model{nullptr};
};

void save_model(const fs::path& path, const SequenceModel& model, const ModelCard& card);
// A model file, or the best model in a run's folder. Throws output errors.
fs::path model_file(const fs::path& path);
LoadedModel load_model(const fs::path& path);

// Everything a run needs to go on to the same bits: weights, AdamW's moments, and the counters in `state`. One file,
// put in place by a rename, so that it is always whole.
void save_training(const fs::path& path, AdamW& optimizer, const ModelCard& card, const Json& state);
Json load_training(const fs::path& path, SequenceModel& model, AdamW& optimizer, const ModelCard& card);

}  // namespace strata
