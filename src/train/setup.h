// The parts of a run before its first step: the model for a task, the device, the cost of its attention.
#pragma once

#include <torch/torch.h>

#include "data/dataset.h"
#include "model/model_file.h"
#include "train/config.h"

namespace strata {

ModelCard make_card(const RunConfig& config, const TaskData& data);
// Throws a usage error for options that do not fit together. embeddings: the folder of frozen ones; empty if the card
// has none.
SequenceModel make_model(const ModelCard& card, const std::string& embeddings = "");
torch::Device device_of(const std::string& name);  // "cpu" or "cuda"; throws a usage error where that cannot run

// Score products of this attention over those of flat attention: Sum_l ceil(T / 2^l)^2 / T^2 for HKT at the full
// length, the cost of the trees of the first test rows for HSA.
double score_ratio(const ModelCard& card, const TaskData& data);

}  // namespace strata
