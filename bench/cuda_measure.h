// What the benchmarks on a GPU share: timing between two events, PyTorch's kernels, inputs.
#pragma once

#include <ATen/Context.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "bench/measure.h"

namespace strata::bench {

using torch::Tensor;

// Events of torch's own, so that the command needs no CUDA runtime beside torch's.
inline double milliseconds(const std::function<void()>& work, int rounds) {
  const c10::impl::VirtualGuardImpl gpu(c10::DeviceType::CUDA);
  const c10::Stream stream = gpu.getStream(gpu.getDevice());
  for (int i = 0; i < 3; ++i) work();
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    c10::Event start(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT),
        end(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
    start.record(stream);
    work();
    end.record(stream);
    end.synchronize();
    times.push_back(start.elapsedTime(end));
  }
  return median(times);
}

enum class Backend { kFlash, kCudnn };

inline void use(Backend backend) {
  at::globalContext().setSDPUseMath(false);
  at::globalContext().setSDPUseMemEfficient(false);
  at::globalContext().setSDPUseFlash(backend == Backend::kFlash);
  at::globalContext().setSDPUseCuDNN(backend == Backend::kCudnn);
}

// Token-major memory, as models have it: (batch, tokens, heads, channels) seen as (batch, heads, tokens, channels).
inline Tensor make_input(int64_t batch, int64_t heads, int64_t tokens, int64_t channels) {
  return torch::randn({batch, tokens, heads, channels}, torch::TensorOptions(torch::kBFloat16).device(torch::kCUDA))
      .transpose(1, 2)
      .detach()
      .set_requires_grad(true);
}

// Copies of all these tensors.
inline double copy_milliseconds(const std::vector<Tensor>& from, int rounds) {
  std::vector<Tensor> to;
  for (const Tensor& t : from) to.push_back(torch::empty_like(t));
  return milliseconds(
      [&] {
        torch::NoGradGuard no_grad;
        for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
      },
      rounds);
}

}  // namespace strata::bench
