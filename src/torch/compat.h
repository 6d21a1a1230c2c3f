// The differences between the libtorch generations that strata builds against (1.13 and 2.x), in one place.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/library.h>
#include <torch/torch.h>
#include <torch/version.h>

namespace strata {

// Operator schemas use c10::optional in 1.13; in 2.x that name is an alias of std::optional.
using c10::optional;

// AdamW's state of one parameter: the keys are strings in 1.13, pointers in 2.x.
inline std::unique_ptr<torch::optim::OptimizerParamState>& optimizer_state(torch::optim::Optimizer& optimizer,
                                                                           const at::Tensor& parameter) {
#if TORCH_VERSION_MAJOR >= 2
  return optimizer.state()[parameter.unsafeGetTensorImpl()];
#else
  return optimizer.state()[c10::guts::to_string(parameter.unsafeGetTensorImpl())];
#endif
}

// bfloat16 autocast for the life of this object.
class AutocastGuard {
 public:
  AutocastGuard(bool enabled, c10::DeviceType device) : enabled_(enabled), cuda_(device == c10::DeviceType::CUDA) {
    if (enabled_) set(true);
  }
  ~AutocastGuard() {
    if (!enabled_) return;
    set(false);
    at::autocast::clear_cache();
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  void set(bool on) const {
#if TORCH_VERSION_MAJOR >= 2
    const auto device = cuda_ ? at::kCUDA : at::kCPU;
    at::autocast::set_autocast_dtype(device, at::kBFloat16);
    at::autocast::set_autocast_enabled(device, on);
#else
    if (cuda_) {
      at::autocast::set_autocast_gpu_dtype(at::kBFloat16);
      at::autocast::set_enabled(on);
    } else {
      at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
      at::autocast::set_cpu_enabled(on);
    }
#endif
  }
  bool enabled_, cuda_;
};

}  // namespace strata
