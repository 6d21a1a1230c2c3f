#include "torch/run_on_device.h"

#ifdef STRATA_CUDA
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <deque>
#include <mutex>

#include "strata/cuda.h"
#endif

namespace strata {

using at::Tensor;

#ifdef STRATA_CUDA

namespace {

// Memory that the allocator may reuse after the work queued on this stream.
Tensor scratch(const Tensor& like, size_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, like.options().dtype(at::kByte));
}

cuda::Stream stream_of(const Tensor& like) { return c10::cuda::getCurrentCUDAStream(like.get_device()).stream(); }

// The plan of a batch's trees on one device, with the tensors it was made from.
struct CachedPlan {
  cuda::HsaPlan plan;
  Tensor numbers;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> trees;
  std::vector<int64_t> versions;
  bool packed = false;
  cuda::Stream stream = nullptr;  // on which `numbers` is copied; on other streams the copy may not be finished

  bool is_of(const Tensor& like, at::TensorList list, bool is_packed, int levels) const {
    if (list.size() != trees.size() || packed != is_packed || plan.levels != levels ||
        numbers.device() != like.device() || stream != stream_of(like))
      return false;
    for (size_t i = 0; i < trees.size(); ++i) {
      if (trees[i].expired() || trees[i]._unsafe_get_target() != list[i].unsafeGetTensorImpl() ||
          versions[i] != static_cast<int64_t>(list[i]._version()))
        return false;
    }
    return true;
  }
};

// All layers of a model, forward and backward, use the same plan, so the last few plans are kept.
std::shared_ptr<const CachedPlan> plan_of(const Tensor& like, at::TensorList trees, const HsaProblem& p) {
  constexpr size_t kKept = 8;
  static std::mutex mutex;
  static std::deque<std::shared_ptr<const CachedPlan>> kept;
  const bool packed = p.sequences > 1 && p.batch_of[1] == 0;
  const std::lock_guard lock(mutex);
  for (const auto& plan : kept) {
    if (plan->is_of(like, trees, packed, p.levels)) return plan;
  }
  auto plan = std::make_shared<CachedPlan>();
  throw_if_failed(cuda::hsa_plan(p, &plan->plan));
  const Tensor host =
      at::empty({static_cast<int64_t>(plan->plan.numbers.size())}, at::TensorOptions(at::kInt).pinned_memory(true));
  std::copy(plan->plan.numbers.begin(), plan->plan.numbers.end(), host.data_ptr<int32_t>());
  plan->numbers = host.to(like.device(), /*non_blocking=*/true);
  plan->stream = stream_of(like);
  for (const Tensor& tree : trees) {
    plan->trees.emplace_back(tree.getIntrusivePtr());
    plan->versions.push_back(static_cast<int64_t>(tree._version()));
  }
  plan->packed = packed;
  kept.push_front(plan);
  if (kept.size() > kKept) kept.pop_back();
  return plan;
}

}  // namespace

bool built_with_cuda() { return true; }
std::string gpu_name() { return cuda::device_name(); }

std::vector<KernelsInUse> gpu_kernels() {
  std::vector<KernelsInUse> all;
  if (!cuda::available().ok()) return all;
  auto add = [&](std::string problem, const cuda::KernelChoice& kernels) {
    all.push_back({std::move(problem), cuda::kernels_name(kernels.forward), cuda::kernels_name(kernels.backward)});
  };
  for (const int levels : {3, 5}) {
    for (const int size : {64, 128, 256}) {
      HktProblem p;
      p.dtype = DType::kBFloat16;
      p.levels = levels;
      p.head_size = p.value_size = size;
      add(c10::str("HKT, ", levels, " levels, heads of ", size), cuda::hkt_kernels(p));
    }
  }
  alignas(16) static const char memory[16] = {};  // of values that are not looked at
  for (const int64_t family : {16, 64}) {
    HsaProblem p;
    p.dtype = DType::kBFloat16;
    p.head_size = p.value_size = 64;
    p.v = {memory, {64, 64, 64, 1}};
    cuda::HsaPlan plan;
    plan.families = 1;
    plan.widest_family = family;
    add(c10::str("HSA, families of ", family, ", heads of 64"), cuda::hsa_kernels(p, plan));
  }
  HsaStreamProblem p;
  p.dtype = DType::kBFloat16;
  p.head_size = p.value_size = 64;
  add("streaming HSA, heads of 64", cuda::hsa_stream_kernels(p));
  return all;
}

void run_hkt_forward(const Tensor& like, const HktProblem& p, const HktOutputs& o) {
  if (!like.is_cuda()) return throw_if_failed(hkt_forward(p, o));
  const cuda::KernelChoice kernels = cuda::hkt_kernels(p);
  if (like.element_size() == 2 && (kernels.forward == cuda::Kernels::kSimt || kernels.backward == cuda::Kernels::kSimt))
    TORCH_WARN_ONCE("strata: HKT with ", p.levels, " levels and heads of ", p.head_size,
                    " channels runs on SIMT kernels, hundreds of times slower than on tensor cores; tensor cores "
                    "need at most 5 levels, and tiles that fit into this GPU's shared memory");
  const c10::cuda::CUDAGuard device(like.device());
  throw_if_failed(cuda::hkt_forward(p, o, stream_of(like)));
}

void run_hkt_backward(const Tensor& like, const HktProblem& p, const HktOutputs& o, const HktGradients& g) {
  if (!like.is_cuda()) return throw_if_failed(hkt_backward(p, o, g));
  const c10::cuda::CUDAGuard device(like.device());
  const Tensor workspace = scratch(like, cuda::hkt_backward_workspace(p));
  throw_if_failed(cuda::hkt_backward(p, o, g, workspace.data_ptr(), stream_of(like)));
}

void run_hsa_forward(const Tensor& like, at::TensorList trees, const HsaProblem& p, const HsaOutputs& o) {
  if (!like.is_cuda()) return throw_if_failed(hsa_forward(p, o));
  const c10::cuda::CUDAGuard device(like.device());
  const auto plan = plan_of(like, trees, p);
  const Tensor workspace = scratch(like, cuda::hsa_forward_workspace(p, plan->plan));
  throw_if_failed(
      cuda::hsa_forward(p, plan->plan, plan->numbers.data_ptr<int32_t>(), o, workspace.data_ptr(), stream_of(like)));
}

void run_hsa_backward(const Tensor& like, at::TensorList trees, const HsaProblem& p, const HsaGradients& g) {
  if (!like.is_cuda()) return throw_if_failed(hsa_backward(p, g));
  const c10::cuda::CUDAGuard device(like.device());
  const auto plan = plan_of(like, trees, p);
  const Tensor workspace = scratch(like, cuda::hsa_backward_workspace(p, plan->plan));
  throw_if_failed(
      cuda::hsa_backward(p, plan->plan, plan->numbers.data_ptr<int32_t>(), g, workspace.data_ptr(), stream_of(like)));
}

void run_hsa_stream_forward(const Tensor& like, const HsaStreamProblem& p, const HsaStreamOutputs& o) {
  if (!like.is_cuda()) return throw_if_failed(hsa_stream_forward(p, o));
  const c10::cuda::CUDAGuard device(like.device());
  const Tensor workspace = scratch(like, cuda::hsa_stream_forward_workspace(p));
  throw_if_failed(cuda::hsa_stream_forward(p, o, workspace.data_ptr(), stream_of(like)));
}

void run_hsa_stream_backward(const Tensor& like, const HsaStreamProblem& p, const HsaStreamOutputs& o,
                             const HsaStreamGradients& g) {
  if (!like.is_cuda()) return throw_if_failed(hsa_stream_backward(p, o, g));
  const c10::cuda::CUDAGuard device(like.device());
  const Tensor workspace = scratch(like, cuda::hsa_stream_backward_workspace(p));
  throw_if_failed(cuda::hsa_stream_backward(p, o, g, workspace.data_ptr(), stream_of(like)));
}

void run_hsa_stream_certificate(const Tensor& like, const HsaStreamProblem& p, void* bound) {
  if (!like.is_cuda()) return throw_if_failed(hsa_stream_certificate(p, bound));
  const c10::cuda::CUDAGuard device(like.device());
  const Tensor workspace = scratch(like, cuda::hsa_stream_certificate_workspace(p));
  throw_if_failed(cuda::hsa_stream_certificate(p, bound, workspace.data_ptr(), stream_of(like)));
}

void run_hsa_stream_step(const Tensor& like, const HsaStreamStep& s) {
  if (!like.is_cuda()) return throw_if_failed(hsa_stream_step(s));
  const c10::cuda::CUDAGuard device(like.device());
  throw_if_failed(cuda::hsa_stream_step(s, stream_of(like)));
}

void run_hkt_decode(const Tensor& like, const HktDecode& d) {
  if (!like.is_cuda()) return throw_if_failed(hkt_decode(d));
  const c10::cuda::CUDAGuard device(like.device());
  const Tensor workspace = scratch(like, cuda::hkt_decode_workspace(d));
  throw_if_failed(cuda::hkt_decode(d, workspace.data_ptr(), stream_of(like)));
}

void run_hkt_append(const Tensor& like, const HktAppend& a) {
  if (!like.is_cuda()) return throw_if_failed(hkt_append(a));
  const c10::cuda::CUDAGuard device(like.device());
  throw_if_failed(cuda::hkt_append(a, stream_of(like)));
}

void run_pyramid_step(const Tensor& like, const PyramidStep& p) {
  if (!like.is_cuda()) return throw_if_failed(pyramid_step(p));
  const c10::cuda::CUDAGuard device(like.device());
  throw_if_failed(cuda::pyramid_step(p, stream_of(like)));
}

bool is_captured(const Tensor& like) {
  if (!like.is_cuda()) return false;
  const c10::cuda::CUDAGuard device(like.device());
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

void run_causal_filter_forward(const Tensor& like, const CausalFilter& f, void* y) {
  if (!like.is_cuda()) return throw_if_failed(causal_filter_forward(f, y));
  const c10::cuda::CUDAGuard device(like.device());
  throw_if_failed(cuda::causal_filter_forward(f, y, stream_of(like)));
}

void run_causal_filter_backward(const Tensor& like, const CausalFilter& f, const CausalFilterGradients& g) {
  if (!like.is_cuda()) return throw_if_failed(causal_filter_backward(f, g));
  const c10::cuda::CUDAGuard device(like.device());
  const Tensor workspace = scratch(like, cuda::causal_filter_backward_workspace(f));
  throw_if_failed(cuda::causal_filter_backward(f, g, workspace.data_ptr(), stream_of(like)));
}

void run_pyramid_forward(const Tensor& like, const Pyramid& p, const PyramidStates& states) {
  const c10::cuda::CUDAGuard device(like.device());
  throw_if_failed(cuda::pyramid_forward(p, states, stream_of(like)));
}

void run_pyramid_backward(const Tensor& like, const Pyramid& p, const PyramidStates& states,
                          const PyramidGradients& g) {
  const c10::cuda::CUDAGuard device(like.device());
  const Tensor workspace = scratch(like, cuda::pyramid_backward_workspace(p));
  throw_if_failed(cuda::pyramid_backward(p, states, g, workspace.data_ptr(), stream_of(like)));
}

#else

namespace {

void refuse_cuda(const Tensor& like) {
  TORCH_CHECK(
      !like.is_cuda(),
      "this build of strata has no CUDA kernels; build it with -DSTRATA_CUDA=ON, or move the tensors to the CPU");
}

}  // namespace

bool built_with_cuda() { return false; }
std::string gpu_name() { return {}; }
std::vector<KernelsInUse> gpu_kernels() { return {}; }

void run_hkt_forward(const Tensor& like, const HktProblem& p, const HktOutputs& o) {
  refuse_cuda(like);
  throw_if_failed(hkt_forward(p, o));
}
void run_hkt_backward(const Tensor& like, const HktProblem& p, const HktOutputs& o, const HktGradients& g) {
  refuse_cuda(like);
  throw_if_failed(hkt_backward(p, o, g));
}
void run_hkt_decode(const Tensor& like, const HktDecode& d) {
  refuse_cuda(like);
  throw_if_failed(hkt_decode(d));
}
void run_hkt_append(const Tensor& like, const HktAppend& a) {
  refuse_cuda(like);
  throw_if_failed(hkt_append(a));
}
void run_pyramid_step(const Tensor& like, const PyramidStep& p) {
  refuse_cuda(like);
  throw_if_failed(pyramid_step(p));
}
bool is_captured(const Tensor&) { return false; }
void run_hsa_forward(const Tensor& like, at::TensorList, const HsaProblem& p, const HsaOutputs& o) {
  refuse_cuda(like);
  throw_if_failed(hsa_forward(p, o));
}
void run_hsa_backward(const Tensor& like, at::TensorList, const HsaProblem& p, const HsaGradients& g) {
  refuse_cuda(like);
  throw_if_failed(hsa_backward(p, g));
}

void run_hsa_stream_forward(const Tensor& like, const HsaStreamProblem& p, const HsaStreamOutputs& o) {
  refuse_cuda(like);
  throw_if_failed(hsa_stream_forward(p, o));
}
void run_hsa_stream_backward(const Tensor& like, const HsaStreamProblem& p, const HsaStreamOutputs& o,
                             const HsaStreamGradients& g) {
  refuse_cuda(like);
  throw_if_failed(hsa_stream_backward(p, o, g));
}
void run_hsa_stream_certificate(const Tensor& like, const HsaStreamProblem& p, void* bound) {
  refuse_cuda(like);
  throw_if_failed(hsa_stream_certificate(p, bound));
}
void run_hsa_stream_step(const Tensor& like, const HsaStreamStep& s) {
  refuse_cuda(like);
  throw_if_failed(hsa_stream_step(s));
}

void run_causal_filter_forward(const Tensor& like, const CausalFilter& f, void* y) {
  refuse_cuda(like);
  throw_if_failed(causal_filter_forward(f, y));
}
void run_causal_filter_backward(const Tensor& like, const CausalFilter& f, const CausalFilterGradients& g) {
  refuse_cuda(like);
  throw_if_failed(causal_filter_backward(f, g));
}

void run_pyramid_forward(const Tensor& like, const Pyramid&, const PyramidStates&) { refuse_cuda(like); }
void run_pyramid_backward(const Tensor& like, const Pyramid&, const PyramidStates&, const PyramidGradients&) {
  refuse_cuda(like);
}

#endif

}  // namespace strata
