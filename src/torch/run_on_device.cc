#include "torch/run_on_device.h"

#ifdef STRATA_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "strata/cuda.h"
#endif

namespace strata {

using at::Tensor;

#ifdef STRATA_CUDA

namespace {

// Memory that the allocator may give to others once the work queued on this stream is done.
Tensor scratch(const Tensor& like, size_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, like.options().dtype(at::kByte));
}

// The plan of the trees on the device, copied from pinned memory on the current stream.
struct DevicePlan {
  DevicePlan(const Tensor& like, const HsaProblem& p) {
    throw_if_failed(cuda::hsa_plan(p, &plan));
    const Tensor host = at::empty({static_cast<int64_t>(plan.numbers.size())},
                                  at::TensorOptions(at::kInt).pinned_memory(true));
    std::copy(plan.numbers.begin(), plan.numbers.end(), host.data_ptr<int32_t>());
    numbers = host.to(like.device(), /*non_blocking=*/true);
  }
  cuda::HsaPlan plan;
  Tensor numbers;
};

cuda::Stream stream_of(const Tensor& like) { return c10::cuda::getCurrentCUDAStream(like.get_device()).stream(); }

}  // namespace

bool built_with_cuda() { return true; }

void run_hkt_forward(const Tensor& like, const HktProblem& p, const HktOutputs& o) {
  if (!like.is_cuda()) return throw_if_failed(hkt_forward(p, o));
  const c10::cuda::CUDAGuard device(like.device());
  throw_if_failed(cuda::hkt_forward(p, o, stream_of(like)));
}

void run_hkt_backward(const Tensor& like, const HktProblem& p, const HktOutputs& o, const HktGradients& g) {
  if (!like.is_cuda()) return throw_if_failed(hkt_backward(p, o, g));
  const c10::cuda::CUDAGuard device(like.device());
  const Tensor workspace = scratch(like, cuda::hkt_backward_workspace(p));
  throw_if_failed(cuda::hkt_backward(p, o, g, workspace.data_ptr(), stream_of(like)));
}

void run_hsa_forward(const Tensor& like, const HsaProblem& p, const HsaOutputs& o) {
  if (!like.is_cuda()) return throw_if_failed(hsa_forward(p, o));
  const c10::cuda::CUDAGuard device(like.device());
  const DevicePlan plan(like, p);
  const Tensor workspace = scratch(like, cuda::hsa_forward_workspace(p, plan.plan));
  throw_if_failed(
      cuda::hsa_forward(p, plan.plan, plan.numbers.data_ptr<int32_t>(), o, workspace.data_ptr(), stream_of(like)));
}

void run_hsa_backward(const Tensor& like, const HsaProblem& p, const HsaGradients& g) {
  if (!like.is_cuda()) return throw_if_failed(hsa_backward(p, g));
  const c10::cuda::CUDAGuard device(like.device());
  const DevicePlan plan(like, p);
  const Tensor workspace = scratch(like, cuda::hsa_backward_workspace(p, plan.plan));
  throw_if_failed(
      cuda::hsa_backward(p, plan.plan, plan.numbers.data_ptr<int32_t>(), g, workspace.data_ptr(), stream_of(like)));
}

#else

namespace {

void refuse_cuda(const Tensor& like) {
  TORCH_CHECK(!like.is_cuda(),
              "this build of strata has no CUDA kernels; build it with -DSTRATA_CUDA=ON, or move the tensors to the CPU");
}

}  // namespace

bool built_with_cuda() { return false; }

void run_hkt_forward(const Tensor& like, const HktProblem& p, const HktOutputs& o) {
  refuse_cuda(like);
  throw_if_failed(hkt_forward(p, o));
}
void run_hkt_backward(const Tensor& like, const HktProblem& p, const HktOutputs& o, const HktGradients& g) {
  refuse_cuda(like);
  throw_if_failed(hkt_backward(p, o, g));
}
void run_hsa_forward(const Tensor& like, const HsaProblem& p, const HsaOutputs& o) {
  refuse_cuda(like);
  throw_if_failed(hsa_forward(p, o));
}
void run_hsa_backward(const Tensor& like, const HsaProblem& p, const HsaGradients& g) {
  refuse_cuda(like);
  throw_if_failed(hsa_backward(p, g));
}

#endif

}  // namespace strata
