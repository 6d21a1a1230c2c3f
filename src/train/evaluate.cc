#include "train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "torch/compat.h"
#include "torch/hsa_op.h"
#include "train/distributed.h"
#include "util/error.h"
#include "util/interrupt.h"

namespace strata {

using torch::Tensor;

std::shared_ptr<TreeMaker> tree_maker(const ModelCard& card) {
  if (!wants_trees(card.config, card.shape)) return nullptr;
  return std::make_shared<TreeMaker>(card.tree, card.config.branching, card.words);
}

namespace {

Tensor on_host(const std::vector<int64_t>& numbers, bool pinned) {
  const Tensor host =
      torch::empty({static_cast<int64_t>(numbers.size())}, torch::TensorOptions(torch::kLong).pinned_memory(pinned));
  std::copy(numbers.begin(), numbers.end(), host.data_ptr<int64_t>());
  return host;
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

Tensor to_device(const std::vector<int64_t>& numbers, torch::Device device) {
  return on_host(numbers, device.is_cuda()).to(device, /*non_blocking=*/device.is_cuda());
}

void copy_to_device(const std::vector<int64_t>& numbers, const Tensor& tensor) {
  tensor.copy_(on_host(numbers, tensor.is_cuda()).view(tensor.sizes()), /*non_blocking=*/tensor.is_cuda());
}

ModelInput to_input(const Batch& batch, torch::Device device) {
  ModelInput input;
  input.tokens = to_device(batch.tokens, device).view({batch.rows, batch.width});
  input.lengths = to_device(batch.lengths, device);
  for (const auto& tree : batch.trees) input.trees.push_back(encoded(tree));
  return input;
}

Loss loss_of(const Tensor& outputs, const Tensor& targets, double label_smoothing) {
  namespace F = torch::nn::functional;
  const Tensor flat = outputs.reshape({targets.size(0), -1})
                          .to(outputs.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat);
  Loss loss;
  loss.mean =
      F::cross_entropy(flat, targets, F::CrossEntropyFuncOptions().ignore_index(-1).label_smoothing(label_smoothing));
  loss.correct = flat.detach().argmax(-1).eq(targets).sum();
  return loss;
}

int64_t count_targets(const Batch& batch) {
  return std::count_if(batch.targets.begin(), batch.targets.end(), [](int64_t target) { return target >= 0; });
}

Loss loss_of(const Tensor& outputs, const Batch& batch, double label_smoothing) {
  Loss loss = loss_of(outputs, to_device(batch.targets, outputs.device()), label_smoothing);
  loss.counted = count_targets(batch);
  return loss;
}

namespace {

constexpr int64_t kAnswerColumns = 4;

// What the outputs answer: (rows, 4), label, predicted class, its probability, loss. outputs: (rows, classes)
Tensor answers_of(const Tensor& outputs, const Batch& batch) {
  const Tensor log_p = torch::log_softmax(outputs.to(torch::kCPU, torch::kDouble), -1);
  const Tensor predicted = log_p.argmax(-1);
  const Tensor answers = torch::empty({batch.rows, kAnswerColumns}, torch::kDouble);
  const auto of = log_p.accessor<double, 2>();
  auto answer = answers.accessor<double, 2>();
  const int64_t* best = predicted.data_ptr<int64_t>();
  for (int64_t row = 0; row < batch.rows; ++row) {
    const int64_t label = batch.targets[row];
    answer[row][0] = static_cast<double>(label);
    answer[row][1] = static_cast<double>(best[row]);
    answer[row][2] = std::exp(of[row][best[row]]);
    answer[row][3] = -of[row][label];
  }
  return answers;
}

std::vector<Answer> read_answers(const Tensor& table) {
  std::vector<Answer> answers;
  const auto of = table.accessor<double, 2>();
  for (int64_t row = 0; row < table.size(0); ++row)
    answers.push_back({static_cast<int32_t>(of[row][0]), static_cast<int32_t>(of[row][1]), of[row][2], of[row][3]});
  return answers;
}

// Adds the tables of all processes, each of which has zeros for the rows of the others: the sums are exact.
Tensor gathered(const Tensor& table, Group* group, torch::Device device) {
  if (group == nullptr) return table.to(torch::kCPU);
  const Tensor whole = table.to(device).contiguous();
  group->sum(whole);
  return whole.to(torch::kCPU);
}

}  // namespace

Json Evaluation::to_json() const {
  Json json = {{"loss", loss}, {"accuracy", accuracy}, {"rows", rows}};
  for (const EvaluationPart& part : parts)
    json["parts"].push_back(
        {{"name", part.name}, {"loss", part.loss}, {"accuracy", part.accuracy}, {"targets", part.targets}});
  return json;
}

Evaluation evaluate(SequenceModel& model, const ModelCard& card, const Dataset& data, const EvaluateOptions& options) {
  torch::NoGradGuard no_grad;
  const bool was_training = model->is_training();
  model->eval();
  const torch::Device device = model->parameters()[0].device();
  LoaderOptions order;
  order.batch = options.batch;
  order.goal = card.shape.next_token ? Goal::kNextToken : Goal::kClassify;
  order.trees = tree_maker(card);
  int64_t index = 0;
  if (options.group != nullptr) {
    index = order.first_batch = options.group->rank();
    order.every = options.group->size();
  }
  Loader loader(data, order);
  const bool wants_answers = options.answers && order.goal == Goal::kClassify;
  // Per batch: the sum of its losses, how many targets are correct, how many count. Their sum is taken in the order of
  // the batches, so it does not depend on the number of processes.
  const Tensor sums =
      torch::zeros({Loader::batches(data, options.batch), 3}, torch::TensorOptions(torch::kDouble).device(device));
  const bool wants_parts = options.answers && order.goal == Goal::kNextToken;
  EvaluationParts parts(data, options.labels, wants_parts ? Loader::batches(data, options.batch) : 0);
  const Tensor answers = torch::zeros({wants_answers ? data.size() : 0, kAnswerColumns}, torch::kDouble);
  Batch batch;
  for (; loader.next(batch); index += order.every) {
    const AutocastGuard autocast(options.bf16, device.type());
    const Tensor outputs = model->forward(to_input(batch, device));
    const Loss loss = loss_of(outputs, batch, 0.0);
    if (wants_answers) answers.narrow(0, batch.first_row, batch.rows).copy_(answers_of(outputs, batch));
    if (loss.counted == 0) continue;  // its mean is no number
    if (wants_parts) parts.add(index, outputs, batch);
    const Tensor row = sums[index];
    row[0].copy_(loss.mean.to(torch::kDouble) * loss.counted);
    row[1].copy_(loss.correct);
    row[2].fill_(loss.counted);
  }
  model->train(was_training);
  Evaluation result;
  const Tensor all = gathered(sums, options.group, device);
  const auto of = all.accessor<double, 2>();
  double counted = 0;
  for (int64_t b = 0; b < all.size(0); ++b) {
    result.loss += of[b][0];
    result.accuracy += of[b][1];
    counted += of[b][2];
  }
  counted = std::max(counted, 1.0);
  result.loss /= counted;
  result.accuracy /= counted;
  if (wants_answers) result.answers = read_answers(gathered(answers, options.group, device));
  if (wants_parts) {
    parts.sums() = gathered(parts.sums(), options.group, device);
    result.parts = parts.result();
  }
  result.rows = data.size();
  return result;
}

}  // namespace strata
