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
  bool mma = allowed_kernels() != Kernels::kSimt && is_16_bit(p.dtype) &&
             std::max(p.head_size, p.value_size) <= kMmaStreamHeadSize && hsa_stream_mma_fits(p) &&
             is_aligned(p.v, p.value_size) && is_aligned(out, p.value_size) &&
             (g == nullptr || (is_aligned(g->dout, p.value_size) && is_aligned(g->dv, p.value_size)));
  for (int l = 0; l < p.levels; ++l) {
    mma = mma && is_aligned(p.q[l], p.head_size) && is_aligned(p.k[l], p.head_size) &&
          (g == nullptr || (is_aligned(g->dq[l], p.head_size) && is_aligned(g->dk[l], p.head_size)));
  }
  return mma ? Kernels::kMma : Kernels::kSimt;
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

Status check_size(const HsaStreamProblem& p) {
  const int64_t tokens = p.batch * p.heads * p.tokens;
  if (tokens <= INT32_MAX) return {};
  return invalid("batch, heads, tokens: expected at most 2^31 - 1 tokens in all heads on CUDA, got ", tokens);
}

// What gradients of no tokens are.
Status clear_tables(const StreamCall& call, const char* what) {
  if (call.g == nullptr) return {};
  auto clear = [&](void* table, int64_t entries) {
    return table == nullptr ? cudaSuccess
                            : cudaMemsetAsync(table, 0, compute_size(call.p.dtype) * entries, call.stream);
  };
  if (Status s = cuda_status(clear(call.g->dlevel_weights, call.p.heads * call.p.levels), what); !s.ok()) return s;
  return cuda_status(clear(call.g->dpositions, stream_position_entries(call.p)), what);
}

Status run(const StreamCall& call, const char* what) {
  const HsaStreamProblem& p = call.p;
  const HsaStreamGradients* g = call.g;
  if (Status s = hsa_stream_check(p, call.o, On::kDevice); !s.ok()) return s;
  if (g != nullptr) {
    if (Status s = hsa_stream_check(*g, p); !s.ok()) return s;
  }
  if (p.batch * p.tokens == 0) return clear_tables(call, what);
  if (Status s = check_size(p); !s.ok()) return s;
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

size_t hsa_stream_certificate_workspace(const HsaStreamProblem& problem) {
  HsaStreamProblem p = problem;
  p.value_size = 0;
  const int64_t nodes = p.batch * p.key_heads * heights_of(p).total;
  return workspace_of(p, false) + compute_size(p.dtype) * static_cast<size_t>(nodes * (p.levels + 1));
}

Status hsa_stream_certificate(const HsaStreamProblem& problem, void* bound, void* workspace, Stream stream) {
  if (Status s = hsa_stream_check_scores(problem, bound, On::kDevice); !s.ok()) return s;
  if (problem.batch * problem.tokens == 0) return {};
  if (Status s = check_size(problem); !s.ok()) return s;
  if (workspace == nullptr && hsa_stream_certificate_workspace(problem) > 0)
    return invalid("workspace: expected device memory, got null");
  HsaStreamProblem p = problem;
  p.value_size = 0;  // values have no part in it
  const StreamCall call{p, {}, nullptr, workspace, static_cast<cudaStream_t>(stream)};
  return cuda_status(hsa_stream_certificate_simt(call, bound), "streaming attention, certificate");
}

Status hsa_stream_step(const HsaStreamStep& s, Stream stream) {
  if (Status status = hsa_stream_check(s); !status.ok() || s.batch == 0) return status;
  return cuda_status(hsa_stream_step_simt(s, static_cast<cudaStream_t>(stream)), "streaming HSA, one step");
}

}  // namespace strata::cuda
