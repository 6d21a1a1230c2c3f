// Streaming HSA on CUDA: the checks, and the only choice of kernels.
#include <algorithm>

#include "base/hsa_stream_check.h"
#include "base/text.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/hsa_stream_kernels.h"
#include "cuda/views.h"
#include "strata/cuda.h"

namespace strata::cuda {
namespace {

// g: null for a forward.
Kernels kernels_for(const HsaStreamProblem& p, const View& out, const HsaStreamGradients* g) {
  const bool mma = allowed_kernels() != Kernels::kSimt && is_16_bit(p.dtype) &&
                   std::max(p.head_size, p.value_size) <= kMmaStreamHeadSize &&
                   hsa_stream_mma_shared_memory(p) <= shared_memory_per_block() && is_aligned(p.q[0], p.head_size) &&
                   is_aligned(p.k[0], p.head_size) && is_aligned(p.v, p.value_size) && is_aligned(out, p.value_size) &&
                   (g == nullptr || (is_aligned(g->dout, p.value_size) && is_aligned(g->dq[0], p.head_size) &&
                                     is_aligned(g->dk[0], p.head_size) && is_aligned(g->dv, p.value_size)));
  return mma ? Kernels::kMma : Kernels::kSimt;
}

// What the kernels do not take yet.
template <class Problem>
Status check_supported(const Problem& p, bool both_sides) {
  if (p.levels == 1 && p.near == 1 && p.key_heads == p.heads && !both_sides) return {};
  return invalid(
      "levels, near, key_heads, both_sides: the CUDA kernels of streaming attention expect 1, 1, heads and "
      "false, got ",
      p.levels, ", ", p.near, ", ", p.key_heads, " and ", both_sides ? "true" : "false", "; run on the CPU");
}

size_t workspace_of(const HsaStreamProblem& p, bool backward) {
  size_t bytes = 0;
  with_storage(p.dtype, [&](auto storage) {
    bytes = place_stream<decltype(storage)>(p, backward, nullptr, nullptr);
    return cudaSuccess;
  });
  return bytes;
}

cudaError_t launch(const StreamCall& call) {
  const bool mma = kernels_for(call.p, call.o.out, call.g) == Kernels::kMma;
  if (call.g == nullptr) return mma ? hsa_stream_forward_mma(call) : hsa_stream_forward_simt(call);
  return mma ? hsa_stream_backward_mma(call) : hsa_stream_backward_simt(call);
}

Status run(const StreamCall& call, const char* what) {
  const HsaStreamProblem& p = call.p;
  const HsaStreamGradients* g = call.g;
  if (Status s = hsa_stream_check(p, call.o, On::kDevice); !s.ok()) return s;
  if (Status s = check_supported(p, p.both_sides); !s.ok()) return s;
  if (g != nullptr) {
    if (Status s = hsa_stream_check(*g, p); !s.ok()) return s;
  }
  if (p.batch * p.tokens == 0) {
    if (g == nullptr || g->dpositions == nullptr) return {};
    const size_t bytes = compute_size(p.dtype) * stream_position_entries(p);
    return cuda_status(cudaMemsetAsync(g->dpositions, 0, bytes, call.stream), what);
  }
  if (p.batch * p.heads * p.tokens > INT32_MAX)
    return invalid("batch, heads, tokens: expected at most 2^31 - 1 tokens in all heads on CUDA, got ",
                   p.batch * p.heads * p.tokens);
  if (call.workspace == nullptr && workspace_of(p, g != nullptr) > 0)
    return invalid("workspace: expected device memory, got null");
  return cuda_status(launch(call), what);
}

}  // namespace

KernelChoice hsa_stream_kernels(const HsaStreamProblem& p) {
  const HsaStreamGradients none{};
  return {kernels_for(p, {}, nullptr), kernels_for(p, {}, &none)};
}

size_t hsa_stream_forward_workspace(const HsaStreamProblem& p) { return workspace_of(p, false); }
size_t hsa_stream_backward_workspace(const HsaStreamProblem& p) { return workspace_of(p, true); }

Status hsa_stream_forward(const HsaStreamProblem& p, const HsaStreamOutputs& o, void* workspace, Stream stream) {
  return run({p, o, nullptr, workspace, static_cast<cudaStream_t>(stream)}, "streaming HSA forward");
}

Status hsa_stream_backward(const HsaStreamProblem& p, const HsaStreamOutputs& o, const HsaStreamGradients& g,
                           void* workspace, Stream stream) {
  return run({p, o, &g, workspace, static_cast<cudaStream_t>(stream)}, "streaming HSA backward");
}

Status hsa_stream_step(const HsaStreamStep& s, Stream stream) {
  if (Status status = hsa_stream_check(s); !status.ok() || s.batch == 0) return status;
  if (Status status = check_supported(s, false); !status.ok()) return status;
  return cuda_status(hsa_stream_step_simt(s, static_cast<cudaStream_t>(stream)), "streaming HSA, one step");
}

}  // namespace strata::cuda
