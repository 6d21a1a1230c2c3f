#include "train/gradient_buckets.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace strata {

using torch::Tensor;

struct GradientBuckets::Life {
  GradientBuckets* buckets;
};

GradientBuckets::GradientBuckets(std::vector<Tensor> parameters, int64_t extra, SumLater sum, int64_t bucket_bytes)
    : sum_(std::move(sum)), life_(std::make_shared<Life>(Life{this})) {
  // Tells the buckets that a gradient has been accumulated.
  struct Hook : torch::autograd::FunctionPostHook {
    Hook(std::shared_ptr<Life> life_, size_t slot_) : life(std::move(life_)), slot(slot_) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list&) override {
      if (life->buckets != nullptr) life->buckets->on_gradient(slot);
      return outputs;
    }
    std::shared_ptr<Life> life;
    size_t slot;
  };
  std::reverse(parameters.begin(), parameters.end());
  for (const Tensor& parameter : parameters) {
    Slot slot;
    slot.parameter = parameter;
    slot.accumulator = torch::autograd::impl::grad_accumulator(parameter);
    slot.accumulator->add_post_hook(std::make_unique<Hook>(life_, slots_.size()));
    slots_.push_back(std::move(slot));
  }
  make_buckets(extra, bucket_bytes);
}

GradientBuckets::~GradientBuckets() { life_->buckets = nullptr; }

void GradientBuckets::make_buckets(int64_t extra, int64_t bucket_bytes) {
  int64_t filled = bucket_bytes;  // of the last bucket
  std::vector<int64_t> sizes;     // of buckets, in elements
  for (size_t s = 0; s < slots_.size(); ++s) {
    const int64_t count = slots_[s].parameter.numel(), bytes = count * slots_[s].parameter.element_size();
    if (filled > 0 && filled + bytes > bucket_bytes) {
      buckets_.emplace_back();
      sizes.push_back(0);
      filled = 0;
    }
    filled += bytes;
    sizes.back() += count;
    slots_[s].bucket = buckets_.size() - 1;
    buckets_.back().slots.push_back(s);
  }
  const auto count = static_cast<int64_t>(slots_.size());
  sizes.back() += extra + count;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].flat = torch::zeros({sizes[b]}, slots_[0].parameter.options().requires_grad(false));
    int64_t at = 0;
    for (const size_t s : buckets_[b].slots) {
      Slot& slot = slots_[s];
      slot.view = buckets_[b].flat.narrow(0, at, slot.parameter.numel()).view(slot.parameter.sizes());
      at += slot.parameter.numel();
    }
  }
  const Tensor& last = buckets_.back().flat;
  extra_ = last.narrow(0, last.numel() - extra - count, extra);
  used_ = last.narrow(0, last.numel() - count, count);
}

void GradientBuckets::begin(const Tensor& extra) {
  torch::NoGradGuard no_grad;
  extra_.copy_(extra);
  used_.zero_();
  for (Slot& slot : slots_) slot.ready = false;
  for (Bucket& bucket : buckets_) bucket.waiting = static_cast<int64_t>(bucket.slots.size());
  next_ = 0;
  armed_ = true;
}

void GradientBuckets::copy_in(Slot& slot) {
  torch::NoGradGuard no_grad;
  if (slot.parameter.grad().defined()) {
    slot.view.copy_(slot.parameter.grad());
  } else {
    slot.view.zero_();
  }
}

void GradientBuckets::on_gradient(size_t s) {
  Slot& slot = slots_[s];
  if (!armed_ || slot.ready) return;
  slot.ready = true;
  copy_in(slot);
  --buckets_[slot.bucket].waiting;
  start_ready_buckets();
}

void GradientBuckets::start_ready_buckets() {
  for (; next_ < buckets_.size() && buckets_[next_].waiting == 0; ++next_) {
    if (next_ + 1 == buckets_.size() && is_used_.empty()) {  // the first step
      torch::NoGradGuard no_grad;
      std::vector<float> used;
      for (const Slot& slot : slots_) used.push_back(slot.parameter.grad().defined() ? 1.0F : 0.0F);
      used_.copy_(torch::tensor(used));
    }
    buckets_[next_].wait = sum_(buckets_[next_].flat);
  }
}

// Which parameters have gradients is a property of the model, and agreed on in the first step: asking every time would
// wait for the device.
void GradientBuckets::settle_used() {
  if (is_used_.empty()) {
    const Tensor used = used_.to(torch::kCPU, torch::kFloat);
    for (int64_t s = 0; s < used.numel(); ++s) is_used_.push_back(used[s].item<float>() > 0);
  }
  for (size_t s = 0; s < slots_.size(); ++s) {
    TORCH_CHECK(is_used_[s] || !slots_[s].ready, "a parameter of shape ", slots_[s].parameter.sizes(),
                " has a gradient in this step, but had none in the first one; several processes need the same "
                "parameters in every step");
    slots_[s].parameter.mutable_grad() = is_used_[s] ? slots_[s].view : Tensor();
  }
}

Tensor GradientBuckets::finish() {
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].ready) continue;
    copy_in(slots_[s]);
    --buckets_[slots_[s].bucket].waiting;
  }
  start_ready_buckets();
  armed_ = false;
  for (Bucket& bucket : buckets_) bucket.wait();
  settle_used();
  return extra_;
}

int64_t GradientBuckets::bytes() const {
  int64_t sum = 0;
  for (const Bucket& bucket : buckets_) sum += bucket.flat.numel() * bucket.flat.element_size();
  return sum;
}

}  // namespace strata
