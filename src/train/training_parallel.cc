// What differs in a run of several processes: the step, and how the ranks agree.
#include <c10/core/impl/VirtualGuardImpl.h>

#include "data/task.h"
#include "torch/compat.h"
#include "train/checkpoint.h"
#include "train/setup.h"
#include "train/training.h"
#include "util/interrupt.h"
#include "util/random.h"
#include "util/sha256.h"

namespace strata {

using torch::Tensor;

// Sums on a GPU are read every tenth step only: reading waits for the device.
constexpr int64_t kLookEvery = 10;

torch::Device Training::device_in(const Group* group, const TrainConfig& config) {
  const torch::Device device = device_of(config.device);
  if (group == nullptr || device.type() != torch::kCUDA) return device;
  const int64_t place = group->place().local_rank, devices = static_cast<int64_t>(torch::cuda::device_count());
  if (place >= devices)
    throw usage_error("--device: expected at most one process per GPU of a machine, which has {}, got process {}",
                      devices, place + 1);
  const torch::Device own(torch::kCUDA, static_cast<c10::DeviceIndex>(place));
  c10::impl::VirtualGuardImpl(torch::kCUDA).setDevice(own);  // for whatever names no device
  return own;
}

void Training::join(Group& group, bool shard_optimizer) {
  const int64_t rows = std::min(c_.batch, data_.train.size());
  if (group.size() > rows)
    throw usage_error(
        "expected at most {} processes, one for every row of a batch (--batch {}, {} training rows), got {}; start "
        "fewer, or raise --batch",
        rows, c_.batch, data_.train.size(), group.size());
  parallel_ = std::make_unique<DataParallel>(group, *optimizer_, shard_optimizer);
  progress_.note(fmt::format("{} processes; a step sums {:.2f} MB of gradients{}", group.size(),
                             static_cast<double>(model_->parameter_count()) * element_size() / 1e6,
                             shard_optimizer ? "; " + parallel_->describe_memory() : ""));
}

double Training::element_size() const { return static_cast<double>(model_->parameters()[0].element_size()); }

// What all ranks must have alike, besides the data. The number of threads and the place of the data may differ.
Json Training::facts() const {
  RunConfig copy = config_;
  copy.data.data.clear();
  copy.data.embeddings.clear();
  copy.train.threads = 0;
  OptionTable table;
  declare(table, copy);
  Sha256 digest;
  for (const Tensor& weights : model_->parameters()) {
    const Tensor bytes = weights.detach().to(torch::kCPU).contiguous();
    digest.update({static_cast<const char*>(bytes.data_ptr()), bytes.nbytes()});
  }
  return {{"options", table.record()},
          {"rows", {{"train", data_.train.size()}, {"valid", data_.valid.size()}, {"test", data_.test.size()}}},
          {"model", {{"card", card_.to_json()}, {"weights", digest.hex()}}}};
}

// The rows of a batch in the order of an epoch, and the step, say what is dropped.
static Tensor dropout_keys(const Batch& batch, uint64_t step_seed, torch::Device device) {
  std::vector<int64_t> keys;
  for (int64_t row = 0; row < batch.rows; ++row)
    keys.push_back(static_cast<int64_t>(mix(step_seed + mix(static_cast<uint64_t>(batch.first_row + row)))));
  return torch::tensor(keys, torch::kLong).to(device);
}

// The loss of the step is the mean, over its batches, of the mean over the rows of each, whoever has them: a process
// adds (sum over its targets) / (targets of the whole batch) / (batches).
void Training::backward_in_parallel(const std::vector<Batch>& batches, uint64_t step_seed) {
  const auto double_options = torch::TensorOptions(torch::kDouble).device(device_);
  DataParallel::Sums own = {torch::zeros({}, double_options), torch::zeros({}, double_options)};
  own.stop = interrupted();
  own.save = parallel_->is_writer() && is_time_to_save();
  int64_t all_targets = 0, all_tokens = 0;
  for (size_t b = 0; b < batches.size(); ++b) {
    const Batch& part = batches[b];
    all_targets += part.all_targets;
    all_tokens += part.all_real_tokens;
    Tensor share;
    if (part.rows > 0) {
      const AutocastGuard autocast(c_.precision == "bf16", device_.type());
      ModelInput input = to_input(part, device_);
      input.dropout_keys = dropout_keys(part, step_seed + b, device_);
      const Loss loss = loss_of(model_->forward(input), part, c_.label_smoothing);
      if (loss.counted > 0) {
        share = loss.mean * (static_cast<double>(loss.counted) /
                             (static_cast<double>(part.all_targets) * static_cast<double>(batches.size())));
        own.loss = own.loss + loss.mean.detach().to(torch::kDouble) * loss.counted;
        own.correct = own.correct + loss.correct;
      }
    }
    if (b + 1 == batches.size()) parallel_->begin(own);
    if (share.defined()) share.backward();
  }
  const bool look = device_.type() == torch::kCPU || (step_ + 1) % kLookEvery == 0;
  const DataParallel::Sums all = parallel_->finish(look);
  agreed_ = {all.stop, all.save};
  const auto counted = static_cast<double>(std::max<int64_t>(all_targets, 1));
  window_.add({all.loss / counted, all.correct, all_targets}, all_tokens);
}

void Training::run_parallel_step(const std::vector<Batch>& batches, double learning_rate, uint64_t seed) {
  torch::manual_seed(seed);
  model_->train();
  optimizer_->zero_grad();
  backward_in_parallel(batches, seed);
  if (c_.clip > 0) optimizer_->clip(c_.clip);
  optimizer_->step(learning_rate);
  parallel_->share_weights();
}

bool Training::is_time_to_save() const {
  const auto now = std::chrono::steady_clock::now();
  return std::chrono::duration<double>(now - last_save_).count() >= static_cast<double>(c_.save_seconds);
}

void Training::resume_in_parallel(bool resume) {
  RunState state;
  const bool loaded = resume && parallel_->is_writer() && fs::exists(folder_.last());
  if (loaded) state = load_training(folder_.last(), model_, *optimizer_, card_);
  if (parallel_->share_state(loaded, state)) restore(state);
}

SequenceModel Training::best_model() const {
  SequenceModel best{nullptr};
  if (is_writer()) {
    best = load_model(folder_.best()).model;
  } else {
    best = make_model(card_, config_.data.embeddings);
  }
  best->to(device_);
  if (c_.precision == "float64") best->to(torch::kDouble);
  if (parallel_ == nullptr) return best;
  torch::NoGradGuard no_grad;
  for (const Tensor& weights : best->parameters()) parallel_->group().broadcast(weights.detach());
  return best;
}

}  // namespace strata
