#include "train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "torch/compat.h"
#include "torch/hsa_op.h"
#include "util/error.h"
#include "util/interrupt.h"

namespace strata {

using torch::Tensor;

std::shared_ptr<TreeMaker> tree_maker(const ModelCard& card) {
  if (!wants_trees(card.config, card.shape)) return nullptr;
  return std::make_shared<TreeMaker>(card.tree, card.config.branching, card.words);
}

namespace {

// A copy on the device. A copy to a GPU uses pinned memory, so that it does not wait for queued work.
Tensor to_device(const std::vector<int64_t>& numbers, torch::Device device) {
  const bool gpu = device.type() == torch::kCUDA;
  const Tensor host =
      torch::empty({static_cast<int64_t>(numbers.size())}, torch::TensorOptions(torch::kLong).pinned_memory(gpu));
  std::copy(numbers.begin(), numbers.end(), host.data_ptr<int64_t>());
  return host.to(device, /*non_blocking=*/gpu);
}

// The tree as the operators read it. Trees that many rows share (balanced trees, quadtrees) are encoded once, and keep
// their plans on a GPU.
Tensor encoded(const std::shared_ptr<const Tree>& tree) {
  if (tree.use_count() == 1) return encode_tree(*tree);
  constexpr size_t kKept = 4096;
  static std::map<const Tree*, std::pair<std::weak_ptr<const Tree>, Tensor>> known;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto& [owner, tensor] = known[tree.get()];
  if (owner.lock() != tree) {  // new, or in the place of another tree
    owner = tree;
    tensor = encode_tree(*tree);
  }
  const Tensor result = tensor;
  if (known.size() > kKept) known.clear();
  return result;
}

}  // namespace

ModelInput to_input(const Batch& batch, torch::Device device) {
  ModelInput input;
  input.tokens = to_device(batch.tokens, device).view({batch.rows, batch.width});
  input.lengths = to_device(batch.lengths, device);
  for (const auto& tree : batch.trees) input.trees.push_back(encoded(tree));
  return input;
}

Loss loss_of(const Tensor& outputs, const Batch& batch, double label_smoothing) {
  namespace F = torch::nn::functional;
  const Tensor targets = to_device(batch.targets, outputs.device());
  const Tensor flat = outputs.reshape({targets.size(0), -1}).to(torch::kFloat);
  Loss loss;
  loss.mean =
      F::cross_entropy(flat, targets, F::CrossEntropyFuncOptions().ignore_index(-1).label_smoothing(label_smoothing));
  loss.correct = flat.detach().argmax(-1).eq(targets).sum();
  for (const int64_t target : batch.targets) loss.counted += target >= 0;
  return loss;
}

namespace {

// Appends what the outputs answer. outputs: (rows, classes)
void add_answers(const Tensor& outputs, const Batch& batch, std::vector<Answer>& answers) {
  const Tensor log_p = torch::log_softmax(outputs.to(torch::kCPU, torch::kDouble), -1);
  const Tensor predicted = log_p.argmax(-1);
  const auto of = log_p.accessor<double, 2>();
  const int64_t* best = predicted.data_ptr<int64_t>();
  for (int64_t row = 0; row < batch.rows; ++row) {
    const int64_t label = batch.targets[row];
    answers.push_back(
        {static_cast<int32_t>(label), static_cast<int32_t>(best[row]), std::exp(of[row][best[row]]), -of[row][label]});
  }
}

}  // namespace

Json Evaluation::to_json() const { return {{"loss", loss}, {"accuracy", accuracy}, {"rows", rows}}; }

Evaluation evaluate(SequenceModel& model, const ModelCard& card, const Dataset& data, const EvaluateOptions& options) {
  torch::NoGradGuard no_grad;
  const bool was_training = model->is_training();
  model->eval();
  const torch::Device device = model->parameters()[0].device();
  LoaderOptions order;
  order.batch = options.batch;
  order.goal = card.shape.next_token ? Goal::kNextToken : Goal::kClassify;
  order.trees = tree_maker(card);
  Loader loader(data, order);
  Tensor loss_sum = torch::zeros({}, torch::TensorOptions(torch::kDouble).device(device)), correct = loss_sum.clone();
  Evaluation result;
  int64_t counted = 0;
  Batch batch;
  while (loader.next(batch)) {
    const AutocastGuard autocast(options.bf16, device.type());
    const Tensor outputs = model->forward(to_input(batch, device));
    const Loss loss = loss_of(outputs, batch, 0.0);
    if (options.answers && order.goal == Goal::kClassify) add_answers(outputs, batch, result.answers);
    loss_sum += loss.mean.to(torch::kDouble) * loss.counted;
    correct += loss.correct;
    counted += loss.counted;
  }
  model->train(was_training);
  const auto count = static_cast<double>(std::max<int64_t>(counted, 1));
  result.loss = loss_sum.item<double>() / count;
  result.accuracy = correct.item<double>() / count;
  result.rows = data.size();
  return result;
}

}  // namespace strata
