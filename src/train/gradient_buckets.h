// Gradients of several processes, summed while the backward still runs. The parameters are cut, from the last to the
// first, into buckets of a fixed order; a bucket is summed as soon as all its gradients and all buckets before it are
// there. c10d's Reducer would do the same, but Debian's does not compile from C++, and it orders its buckets anew after
// the first step, so that a resumed run would have other bits.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <vector>

namespace strata {

class GradientBuckets {
 public:
  // Starts the sum of a flat tensor over all processes, in place; the sum is there after the call of what it returns.
  using SumLater = std::function<std::function<void()>(const torch::Tensor& flat)>;
  static constexpr int64_t kBytes = 1 << 20;  // of a bucket; a larger parameter has a bucket of its own

  // extra: numbers that are summed with the last bucket. All parameters have one type.
  GradientBuckets(std::vector<torch::Tensor> parameters, int64_t extra, SumLater sum, int64_t bucket_bytes = kBytes);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Before the last backward of a step: its gradients are complete. extra: (extra), of the parameters' type.
  void begin(const torch::Tensor& extra);
  // After it, or without it: sums what is left and waits for all. Gradients are then views of the buckets; a parameter
  // that no process used has none. Returns the sums of `extra`.
  torch::Tensor finish();

  int64_t bytes() const;  // summed per step

 private:
  struct Slot {
    torch::Tensor parameter, view;  // view: of the bucket
    size_t bucket = 0;
    bool ready = false;
    // Whose hook tells that the gradient is there. The type of its pointer depends on the version of PyTorch.
    decltype(torch::autograd::impl::grad_accumulator({})) accumulator;
  };
  struct Bucket {
    torch::Tensor flat;
    int64_t waiting = 0;  // slots that are not ready
    std::vector<size_t> slots;
    std::function<void()> wait;
  };
  void make_buckets(int64_t extra, int64_t bucket_bytes);
  void on_gradient(size_t slot);
  void copy_in(Slot& slot);
  void start_ready_buckets();
  void settle_used();

  std::vector<Slot> slots_;  // from the last parameter to the first
  std::vector<Bucket> buckets_;
  const SumLater sum_;
  torch::Tensor extra_, used_;  // views at the end of the last bucket; used_: 1 for every slot with a gradient
  std::vector<bool> is_used_;   // by any process, from the first step on
  size_t next_ = 0;             // the first bucket whose sum has not been started
  bool armed_ = false;
  struct Life;  // hooks outlive this object
  std::shared_ptr<Life> life_;
};

}  // namespace strata
