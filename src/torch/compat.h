// The differences between the libtorch versions that strata supports (1.13 and 2.x), in one place.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/library.h>
#include <torch/torch.h>
#include <torch/version.h>

namespace strata {

// Operator schemas use c10::optional in 1.13; in 2.x that name is an alias of std::optional.
using c10::optional;

// Whether a size is open: known by name only, while torch.compile or torch.export trace with dynamic shapes. Meta
// kernels then must not compare sizes, or the graph serves one length alone; the kernels check when the graph runs.
inline bool has_open_sizes(const at::Tensor& tensor) {
#if TORCH_VERSION_MAJOR >= 2
  for (const c10::SymInt& size : tensor.sym_sizes()) {
    if (!size.maybe_as_int().has_value()) return true;
  }
#endif
  (void)tensor;
  return false;
}
inline bool has_open_sizes(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (has_open_sizes(tensor)) return true;
  }
  return false;
}

// Multiplies all tensors by a factor that lies on their device.
inline void multiply_all(at::TensorList tensors, const at::Tensor& factor) {
#if TORCH_VERSION_MAJOR >= 2
  at::_foreach_mul_(tensors, factor);
#else
  for (const at::Tensor& tensor : tensors) tensor.mul_(factor);
#endif
}

// A step of AdamW on all tensors in one kernel, on a GPU: numbers of steps and learning rate lie in its memory.
constexpr bool kHasFusedAdamW = TORCH_VERSION_MAJOR >= 2;
inline void fused_adamw(at::TensorList parameters, at::TensorList gradients, at::TensorList means,
                        at::TensorList squares, at::TensorList steps, const at::Tensor& rate, double mean_decay,
                        double square_decay, double weight_decay, double tiny) {
#if TORCH_VERSION_MAJOR >= 2
  at::_fused_adamw_(parameters, gradients, means, squares, {}, steps, rate, mean_decay, square_decay, weight_decay,
                    tiny, /*amsgrad=*/false, /*maximize=*/false);
#else
  (void)parameters, (void)gradients, (void)means, (void)squares, (void)steps, (void)rate, (void)mean_decay;
  (void)square_decay, (void)weight_decay, (void)tiny;
  TORCH_CHECK(false, "fused_adamw: expected PyTorch 2");
#endif
}

// bfloat16 autocast, for the lifetime of this object.
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

// The type that autocast casts to, if it is on.
inline optional<at::ScalarType> autocast_type(c10::DeviceType device) {
#if TORCH_VERSION_MAJOR >= 2
  if (!at::autocast::is_autocast_enabled(device)) return c10::nullopt;
  return at::autocast::get_autocast_dtype(device);
#else
  const bool cuda = device == c10::DeviceType::CUDA;
  if (!(cuda ? at::autocast::is_enabled() : at::autocast::is_cpu_enabled())) return c10::nullopt;
  return cuda ? at::autocast::get_autocast_gpu_dtype() : at::autocast::get_autocast_cpu_dtype();
#endif
}

}  // namespace strata
