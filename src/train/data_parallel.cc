#include "train/data_parallel.h"

#include <algorithm>
#include <numeric>

namespace strata {

using torch::Tensor;

namespace {

// What a process adds to the last bucket: its loss in three numbers and its correct answers in two, together exact in
// float32, and two flags. Every process has a row of its own, so the sum over processes is exact as well.
constexpr int64_t kLossParts = 3, kCorrectParts = 2, kColumns = kLossParts + kCorrectParts + 2;

std::vector<Tensor> parameters_of(AdamW& optimizer) {
  std::vector<Tensor> parameters;
  for (const AdamW::Slot& slot : optimizer.slots()) parameters.push_back(slot.parameter);
  return parameters;
}

// Numbers of type `type` whose sum is `value`, a double.
void append_parts(const Tensor& value, int64_t count, torch::ScalarType type, std::vector<Tensor>& parts) {
  Tensor rest = value;
  for (int64_t i = 0; i < count; ++i) {
    parts.push_back(rest.to(type));
    rest = rest - parts.back().to(torch::kDouble);
  }
}

// The largest parameter first, each to the process with the least so far.
std::vector<int64_t> choose_owners(const std::vector<AdamW::Slot>& slots, int64_t processes) {
  std::vector<size_t> order(slots.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return slots[a].parameter.numel() > slots[b].parameter.numel(); });
  std::vector<int64_t> owners(slots.size()), load(static_cast<size_t>(processes), 0);
  for (const size_t slot : order) {
    const auto least = std::min_element(load.begin(), load.end());
    owners[slot] = least - load.begin();
    *least += slots[slot].parameter.numel();
  }
  return owners;
}

}  // namespace

DataParallel::DataParallel(Group& group, AdamW& optimizer, bool shard)
    : group_(group),
      optimizer_(optimizer),
      sharded_(shard),
      owners_(choose_owners(optimizer.slots(), group.size())),
      buckets_(parameters_of(optimizer), group.size() * kColumns,
               [&group](const Tensor& flat) { return group.sum_later(flat); }) {
  for (size_t s = 0; s < owners_.size(); ++s) optimizer_.slots()[s].foreign = is_foreign(s);
}

void DataParallel::begin(const Sums& own) {
  torch::NoGradGuard no_grad;
  const Tensor& like = optimizer_.slots()[0].parameter;
  std::vector<Tensor> parts;
  append_parts(own.loss, kLossParts, like.scalar_type(), parts);
  append_parts(own.correct, kCorrectParts, like.scalar_type(), parts);
  for (const bool flag : {own.stop, own.save})
    parts.push_back(torch::full({}, flag ? 1.0 : 0.0, like.options().requires_grad(false)));
  const Tensor rows = torch::zeros({group_.size(), kColumns}, like.options().requires_grad(false));
  rows[group_.rank()].copy_(torch::stack(parts));
  buckets_.begin(rows.flatten());
}

DataParallel::Sums DataParallel::finish(bool look) {
  torch::NoGradGuard no_grad;
  const Tensor rows = buckets_.finish().view({group_.size(), kColumns}).to(torch::kDouble);
  Sums all;
  all.loss = rows.narrow(1, 0, kLossParts).sum(1).sum();
  all.correct = rows.narrow(1, kLossParts, kCorrectParts).sum(1).sum();
  if (look) {
    const Tensor flags = rows.narrow(1, kColumns - 2, 2).sum(0).to(torch::kCPU);
    all.stop = flags[0].item<double>() > 0;
    all.save = flags[1].item<double>() > 0;
  }
  return all;
}

void DataParallel::share_weights() {
  if (!sharded_) return;
  torch::NoGradGuard no_grad;
  for (int64_t owner = 0; owner < group_.size(); ++owner) {
    std::vector<Tensor> weights;
    for (size_t s = 0; s < owners_.size(); ++s) {
      if (owners_[s] == owner) weights.push_back(optimizer_.slots()[s].parameter.detach().flatten());
    }
    if (weights.empty()) continue;
    const Tensor flat = torch::cat(weights);
    group_.broadcast(flat, owner);
    if (owner == group_.rank()) continue;
    int64_t at = 0;
    for (size_t s = 0; s < owners_.size(); ++s) {
      Tensor& parameter = optimizer_.slots()[s].parameter;
      if (owners_[s] != owner) continue;
      parameter.copy_(flat.narrow(0, at, parameter.numel()).view(parameter.sizes()));
      at += parameter.numel();
    }
  }
}

void DataParallel::collect_moments() {
  if (!sharded_) return;
  torch::NoGradGuard no_grad;
  for (size_t s = 0; s < owners_.size(); ++s) {
    AdamW::Slot& slot = optimizer_.slots()[s];
    if (owners_[s] == 0 || slot.steps == 0) continue;
    for (Tensor* moment : {&slot.mean, &slot.square}) {
      if (is_writer()) {
        *moment = torch::empty_like(slot.parameter).detach();
        group_.receive(*moment, owners_[s]);
      } else if (owners_[s] == group_.rank()) {
        group_.send(*moment, 0);
      }
    }
  }
}

void DataParallel::release_moments() {
  for (size_t s = 0; s < owners_.size(); ++s) {
    if (is_foreign(s)) optimizer_.slots()[s].mean = optimizer_.slots()[s].square = Tensor();
  }
}

bool DataParallel::share_state(bool loaded, RunState& state) {
  torch::NoGradGuard no_grad;
  const std::string text = group_.tell(loaded ? state.to_json().dump() : "");
  if (text.empty()) return false;
  state = RunState::from_json(Json::parse(text), "the state of rank 0");
  for (AdamW::Slot& slot : optimizer_.slots()) {
    group_.broadcast(slot.parameter.detach());
    const auto steps = state.adamw_steps.find(slot.name);
    if (steps == state.adamw_steps.end()) continue;
    slot.steps = steps->second;
    for (Tensor* moment : {&slot.mean, &slot.square}) {
      if (!is_writer()) *moment = torch::empty_like(slot.parameter).detach();
      group_.broadcast(*moment);
    }
  }
  release_moments();
  return true;
}

std::string DataParallel::describe_memory() const {
  double own = 0, all = 0;
  for (size_t s = 0; s < owners_.size(); ++s) {
    const Tensor& parameter = optimizer_.slots()[s].parameter;
    const double bytes = 2.0 * static_cast<double>(parameter.numel() * parameter.element_size());
    all += bytes;
    if (!is_foreign(s)) own += bytes;
  }
  return fmt::format("AdamW's moments: {:.2f} of {:.2f} MB on rank {} of {}", own / 1e6, all / 1e6, group_.rank(),
                     group_.size());
}

}  // namespace strata
