// Models on disk. A model file is a safetensors file whose header carries everything needed to use it.
#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "model/model_card.h"
#include "model/safetensors.h"
#include "model/sequence_model.h"

namespace strata {

struct LoadedModel {
  ModelCard card;
  SequenceModel model{nullptr};
};

void save_model(const fs::path& path, const SequenceModel& model, const ModelCard& card);
// A model file, or the best model in a run's folder. Throws output errors. check_digest: weights that differ from the
// digest in their file are an error.
fs::path model_file(const fs::path& path);
LoadedModel load_model(const fs::path& path, bool check_digest = true);

// ---- for files that hold a model among other things (train/checkpoint.h). All throw output errors.

inline constexpr const char* kCardKey = "strata.model";  // of the card in a file's header
void save_tensors(const fs::path& path, const NamedTensors& tensors, const Metadata& metadata);
SafetensorsFile load_tensors(const fs::path& path, bool check_digest = true);
Json header_json(const SafetensorsFile& file, const char* key, const fs::path& path);
// Copies tensors named prefix + name into those of a model; every name and shape must match.
void copy_weights(const std::map<std::string, torch::Tensor>& stored, const std::string& prefix,
                  const torch::OrderedDict<std::string, torch::Tensor>& into, const fs::path& path);

}  // namespace strata
