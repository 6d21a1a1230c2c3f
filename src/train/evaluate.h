// Running a model over a split.
#pragma once

#include <torch/torch.h>

#include "data/config.h"
#include "data/loader.h"
#include "model/model_file.h"
#include "model/sequence_model.h"
#include "train/answers.h"
#include "train/evaluation_parts.h"

namespace strata {

class Group;

// A batch as the model reads it, on its device.
ModelInput to_input(const Batch& batch, torch::Device device);

// A copy of numbers on the device. A copy to a GPU uses pinned memory, so that it does not wait for queued work.
torch::Tensor to_device(const std::vector<int64_t>& numbers, torch::Device device);
// In the place of what `tensor` holds.
void copy_to_device(const std::vector<int64_t>& numbers, const torch::Tensor& tensor);

// The loss of the outputs in nats, and the number of correct ones. Targets of -1 do not count.
struct Loss {
  torch::Tensor mean;     // with the gradient
  torch::Tensor correct;  // a count
  int64_t counted = 0;
};
Loss loss_of(const torch::Tensor& outputs, const Batch& batch, double label_smoothing);
// Of targets on the device; without the count.
Loss loss_of(const torch::Tensor& outputs, const torch::Tensor& targets, double label_smoothing);
int64_t count_targets(const Batch& batch);

struct Evaluation {
  double loss = 0;      // nats per row, or per token of a language model
  double accuracy = 0;  // share of rows, or of tokens
  int64_t rows = 0;
  std::vector<Answer> answers;        // one per row of a classifier, if requested
  std::vector<EvaluationPart> parts;  // of a language model, if requested
  Json to_json() const;               // without the answers
};

struct EvaluateOptions {
  int64_t batch = 128;
  bool bf16 = false;
  bool answers = false;                  // of a classifier, and parts of a language model
  Group* group = nullptr;                // shares the batches; every process gets the result of one
  std::vector<std::string> labels = {};  // the names of parts, where rows have labels
};
Evaluation evaluate(SequenceModel& model, const ModelCard& card, const Dataset& data, const EvaluateOptions& options);

// The data that a run was trained on, changed by `changes` (option: value). For a model file without a run, the
// defaults of its task.
DataConfig data_of_model(const std::string& model, const Json& changes, const ModelCard& card);

// That data, read, with its files as a record describes them. Throws a data error if a file is not what the record of
// the run says, unless `allow_changed`.
struct ModelData {
  DataConfig config;
  TaskData data;
  Json files;
};
// whole: all rows are in the test split.
ModelData load_model_data(const std::string& model, const Json& changes, const ModelCard& card, bool allow_changed,
                          bool whole = false);

// Makes the trees of a model's rows; null if its attention uses none.
std::shared_ptr<TreeMaker> tree_maker(const ModelCard& card);

}  // namespace strata
