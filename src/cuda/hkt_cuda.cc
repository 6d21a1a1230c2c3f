// HKT on CUDA: the checks, and the only choice of a kernel.
#include <algorithm>

#include "base/hkt_check.h"
#include "base/hkt_rows.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/hkt_kernels.h"
#include "cuda/storage.h"
#include "cuda/views.h"
#include "strata/cuda.h"

namespace strata::cuda {
namespace {

bool supports_sm90(const HktProblem& p) {
  if (!has_sm90_kernels() || p.levels > kSm90Levels || std::max(p.head_size, p.value_size) > kSm90HeadSize ||
      p.bias.data != nullptr || p.slopes != nullptr || p.dropout.probability > 0 || !is_aligned(p.v, p.value_size) ||
      !has_small_stride(p.v))
    return false;
  return std::all_of(p.k, p.k + p.levels,
                     [&](const ConstView& k) { return is_aligned(k, p.head_size) && has_small_stride(k); }) &&
         std::all_of(p.q, p.q + p.levels, [&](const ConstView& q) { return is_aligned(q, p.head_size); });
}

bool supports_mma(const HktProblem& p) {
  return allowed_kernels() != Kernels::kSimt && is_16_bit(p.dtype) && p.levels <= kMmaLevels;
}

Kernels forward_kernels(const HktProblem& p, const HktOutputs& o) {
  if (!supports_mma(p) || !hkt_forward_fits_mma(p)) return Kernels::kSimt;
  return supports_sm90(p) && is_aligned(o.out, p.value_size) ? Kernels::kSm90 : Kernels::kMma;
}

Kernels backward_kernels(const HktProblem& p, const HktGradients& g) {
  if (!supports_mma(p) || !hkt_backward_fits_mma(p)) return Kernels::kSimt;
  bool sm90 = supports_sm90(p) && is_aligned(g.dout, p.value_size) && is_aligned(g.dv, p.value_size) &&
              has_small_stride(g.dout);
  for (int l = 0; l < p.levels && sm90; ++l)
    sm90 = is_aligned(g.dq[l], p.head_size) && is_aligned(g.dk[l], p.head_size) && has_small_stride(p.q[l]);
  return sm90 ? Kernels::kSm90 : Kernels::kMma;
}

// The sums of dq, which scores computed once need, are cleared, added to and converted: a cost per token that pays
// where many keys are seen. Measured on an H200, with heads of 64 and 32 channels from 128 to 4096 tokens. Of packed
// sequences the longest and the mean are known here; the mean over tokens lies between them.
bool backward_once(const HktProblem& p) {
  if (std::max(p.head_size, p.value_size) > kOnceHeadSize || p.tokens == 0 || p.key_tokens == 0) return false;
  if (scored_once_from() >= 0) return p.tokens >= scored_once_from();
  const bool packed = p.q[0].begins != nullptr;
  const int64_t keys = packed ? (p.key_tokens + p.packed_key_rows / p.batch) / 2 : p.key_tokens;
  const int64_t seen = std::min(keys, p.window_left + p.window_right + 1);  // by a token
  const bool narrow = std::max(p.head_size, p.value_size) <= 32;
  const int64_t fewest = narrow ? 256 : p.levels == 1 ? 512 : 1024;
  return seen >= fewest * (p.causal && !(narrow && p.levels == 1) ? 2 : 1);
}

cudaError_t run_forward(const HktProblem& p, const HktOutputs& o, cudaStream_t stream) {
  switch (forward_kernels(p, o)) {
    case Kernels::kSm90:
      return hkt_forward_sm90(p, o, stream);
    case Kernels::kMma:
      return with_16_bit_storage(p.dtype, [&](auto t) { return hkt_forward_mma<decltype(t)>(p, o, stream); });
    default:
      return hkt_forward_simt(p, o, stream);
  }
}

// On tensor cores the workspace has D, laid out as lse, and then the parts of da.
cudaError_t run_backward(const HktProblem& p, const HktOutputs& o, const HktGradients& g, void* workspace,
                         cudaStream_t stream) {
  const Kernels kernels = backward_kernels(p, g);
  if (kernels == Kernels::kSimt) return hkt_backward_simt(p, o, g, workspace, stream);
  if (kernels == Kernels::kSm90 && backward_once(p)) return hkt_backward_once(p, o, g, workspace, stream);
  auto* deltas = static_cast<float*>(workspace);
  float* weight_parts = deltas + hkt_lines(p);
  cudaError_t e = hkt_backward_deltas(p, o, g, deltas, stream);
  if (e != cudaSuccess) return e;
  const bool sm90 = kernels == Kernels::kSm90;
  e = sm90 ? hkt_backward_sm90(p, o, g, deltas, weight_parts, stream) : with_16_bit_storage(p.dtype, [&](auto t) {
    return hkt_backward_mma<decltype(t)>(p, o, g, deltas, weight_parts, stream);
  });
  if (e != cudaSuccess) return e;
  return hkt_backward_weights(p, weight_parts, sm90 ? hkt_backward_sm90_parts(p) : hkt_backward_mma_parts(p), g,
                              stream);
}

Status check_grid(const HktProblem& p) {
  if (p.batch <= 65535 && p.heads <= 65535) return {};
  return invalid("batch, heads: expected at most 65535 each on CUDA, got ", p.batch, " and ", p.heads,
                 "; split the batch");
}

Status check_bias_gradient(const HktProblem& p, const HktGradients& g) {
  if (g.dbias.data == nullptr) return {};
  if ((p.batch == 1 || g.dbias.stride[0] != 0) && (p.heads == 1 || g.dbias.stride[1] != 0)) return {};
  return invalid(
      "dbias: on CUDA the gradient of a bias that broadcasts over batch or heads is not computed; expand the "
      "bias, or do not ask for its gradient");
}

}  // namespace

KernelChoice hkt_kernels(const HktProblem& problem) {
  const HktProblem p = hkt_complete(problem);
  return {forward_kernels(p, {}), backward_kernels(p, {})};
}

Status hkt_forward(const HktProblem& problem, const HktOutputs& o, Stream stream) {
  if (Status s = hkt_check(problem, o, On::kDevice); !s.ok()) return s;
  const HktProblem p = hkt_complete(problem);
  if (hkt_is_empty(p) || p.tokens == 0) return {};
  if (Status s = check_grid(p); !s.ok()) return s;
  return cuda_status(run_forward(p, o, static_cast<cudaStream_t>(stream)), "HKT forward");
}

// Enough for whichever kernels the gradients' memory allows.
size_t hkt_backward_workspace(const HktProblem& problem) {
  const HktProblem p = hkt_complete(problem);
  const Kernels kernels = backward_kernels(p, {});
  if (kernels == Kernels::kSimt) return hkt_backward_workspace_simt(p);
  int64_t parts = hkt_backward_mma_parts(p);
  if (kernels == Kernels::kSm90) parts = std::max(parts, hkt_backward_sm90_parts(p));
  const size_t bytes = static_cast<size_t>(hkt_lines(p) + p.heads * parts * kMmaLevels) * sizeof(float);
  return kernels == Kernels::kSm90 && backward_once(p) ? std::max(bytes, hkt_backward_once_workspace(p)) : bytes;
}

Status hkt_backward(const HktProblem& problem, const HktOutputs& o, const HktGradients& g, void* workspace,
                    Stream stream) {
  if (Status s = hkt_check(problem, o, On::kDevice); !s.ok()) return s;
  if (Status s = hkt_check(g, problem); !s.ok()) return s;
  const HktProblem p = hkt_complete(problem);
  if (Status s = check_bias_gradient(p, g); !s.ok()) return s;
  if (Status s = check_grid(p); !s.ok()) return s;
  const auto queue = static_cast<cudaStream_t>(stream);
  if (hkt_is_empty(p)) {
    return cuda_status(cudaMemsetAsync(g.dweights, 0, compute_size(p.dtype) * p.heads * p.levels, queue),
                       "HKT backward");
  }
  if (workspace == nullptr)
    return invalid("workspace: expected hkt_backward_workspace() bytes of device memory, got null");
  return cuda_status(run_backward(p, o, g, workspace, queue), "HKT backward");
}

}  // namespace strata::cuda
