#include "train/train_step.h"

#include "torch/compat.h"
#include "util/error.h"

namespace strata {
namespace {

// Steps of a shape before it is recorded. The first makes AdamW's moments, the libraries' handles and workspaces.
constexpr int64_t kStepsBefore = 3;
// A graph keeps the memory of its step, so that shapes beyond these are not recorded.
constexpr size_t kMostGraphs = 8, kMostShapes = 4096;

}  // namespace

TrainStep::TrainStep(SequenceModel model, AdamW& optimizer, StepOptions options)
    : model_(std::move(model)),
      optimizer_(optimizer),
      options_(std::move(options)),
      device_(model_->parameters()[0].device()) {}

TrainStep::Placed TrainStep::place(const Batch& batch) const {
  return {to_input(batch, device_), to_device(batch.targets, device_)};
}

// Everything between the inputs and the new weights. The learning rate is set before.
std::vector<Loss> TrainStep::compute(const std::vector<Placed>& batches) {
  std::vector<Loss> losses;
  optimizer_.zero_grad();
  for (const Placed& batch : batches) {
    Loss loss;
    {
      const AutocastGuard autocast(options_.bf16, device_.type());
      loss = loss_of(model_->forward(batch.input), batch.targets, options_.label_smoothing);
    }
    (loss.mean / static_cast<double>(batches.size())).backward();
    loss.mean = loss.mean.detach();
    losses.push_back(std::move(loss));
  }
  if (options_.clip > 0) optimizer_.clip(options_.clip);
  optimizer_.update();
  return losses;
}

bool TrainStep::may_record(const std::vector<Batch>& batches, const Shape& shape) const {
  if (!options_.graphs || !device_.is_cuda() || !can_record()) return false;
  for (const Batch& batch : batches) {
    if (!batch.trees.empty()) return false;
  }
  const auto found = recorded_.find(shape);
  if (found != recorded_.end() && found->second.graph != nullptr) return true;
  size_t graphs = 0;
  for (const auto& [other, recorded] : recorded_) graphs += recorded.graph != nullptr ? 1 : 0;
  return graphs < kMostGraphs && (found != recorded_.end() || recorded_.size() < kMostShapes);
}

void TrainStep::record(Recorded& recorded, const std::vector<Batch>& batches) {
  for (const Batch& batch : batches) recorded.batches.push_back(place(batch));
  const DeviceGraph* beside = nullptr;
  for (const auto& [shape, other] : recorded_) beside = other.graph != nullptr ? other.graph.get() : beside;
  try {
    recorded.graph = std::make_unique<DeviceGraph>([&] { recorded.losses = compute(recorded.batches); }, beside);
  } catch (const c10::Error& error) {
    throw Error(ExitCode::kFailure, fmt::format("a training step could not be recorded as a CUDA graph ({}); use "
                                                "--graphs off",
                                                error.what_without_backtrace()));
  }
}

std::vector<Loss> TrainStep::replay(Recorded& recorded, const std::vector<Batch>& batches, double learning_rate,
                                    bool is_first) {
  for (size_t n = 0; n < batches.size() && !is_first; ++n) {
    const Placed& placed = recorded.batches[n];
    copy_to_device(batches[n].tokens, placed.input.tokens);
    copy_to_device(batches[n].lengths, placed.input.lengths);
    copy_to_device(batches[n].targets, placed.targets);
  }
  optimizer_.set_learning_rate(learning_rate);
  recorded.graph->replay();
  if (!is_first) optimizer_.replayed();  // recording has counted the first
  ++replays_;
  return recorded.losses;
}

std::vector<Loss> TrainStep::operator()(const std::vector<Batch>& batches, double learning_rate, uint64_t seed) {
  // Every step has its own seed for dropout, so that a resumed run draws the same numbers.
  torch::manual_seed(seed);
  model_->train();
  Shape shape;
  for (const Batch& batch : batches)
    shape.insert(shape.end(), {batch.rows, batch.width, static_cast<int64_t>(batch.targets.size())});
  Recorded* const recorded = may_record(batches, shape) ? &recorded_[shape] : nullptr;
  const SideStream stream(recorded != nullptr ? device_ : torch::Device(torch::kCPU));
  std::vector<Loss> losses;
  if (recorded != nullptr && recorded->seen++ >= kStepsBefore) {
    const bool is_first = recorded->graph == nullptr;
    if (is_first) record(*recorded, batches);
    losses = replay(*recorded, batches, learning_rate, is_first);
  } else {
    std::vector<Placed> placed;
    for (const Batch& batch : batches) placed.push_back(place(batch));
    optimizer_.set_learning_rate(learning_rate);
    losses = compute(placed);
  }
  for (size_t n = 0; n < batches.size(); ++n) losses[n].counted = count_targets(batches[n]);
  return losses;
}

}  // namespace strata
