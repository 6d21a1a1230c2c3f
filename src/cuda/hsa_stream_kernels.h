// The CUDA kernels of streaming HSA (docs/MATH.md, section 2.5). hsa_stream_cuda.cc has checked the arguments and
// chosen the kernels; launchers queue everything on the stream. A stream is one sequence and head.
#pragma once

#include <type_traits>

#include "cuda/storage.h"
#include "strata/cuda.h"

namespace strata::cuda {

// Complete nodes of every height, leaves included; those above the leaves are numbered one height after the other.
struct StreamHeights {
  static constexpr int kMax = 32;
  int count = 1;
  int total = 0;     // inner nodes
  int size[kMax];    // tokens of a node
  int offset[kMax];  // of a height's first node among all inner nodes
};

template <class S>
struct StreamArgs {
  using C = typename ComputeOf<S>::Type;
  HsaStreamProblem p;
  HsaStreamOutputs o;
  HsaStreamGradients g;
  StreamHeights heights;
  C *mass, *kappa, *k, *v;       // of inner nodes: (stream, node), (stream, node, channels)
  S *rounded_k, *rounded_v;      // operands of the tensor cores
  C *dk, *dv, *dkappa, *deltas;  // of inner nodes; (stream, token): <dout, out> - dlse
  C* partials;                   // gradients of entries, by splits of the queries
  C *leaf_dkappa, *dmass;        // (stream, token) and (stream, node); null: the weights' gradient is not wanted
  long long* positions;          // in fixed point; null: not wanted
};

// g: null for a forward.
struct StreamCall {
  const HsaStreamProblem& p;
  const HsaStreamOutputs& o;
  const HsaStreamGradients* g;
  void* workspace;
  cudaStream_t stream;
};

// hsa_stream_means.cu: the means of all inner nodes; rounded as well, for tensor cores.
template <class S>
cudaError_t hsa_stream_means(const StreamArgs<S>& a, bool rounded, cudaStream_t stream);

// hsa_stream_weights.cu: the gradient of the weights, from those of all entries; does nothing where it is not wanted.
template <class S>
cudaError_t hsa_stream_weight_gradient(const StreamArgs<S>& a, cudaStream_t stream);

// hsa_stream_forward_mma.cu, hsa_stream_backward_mma.cu: bfloat16 and float16, heads up to 128 channels, aligned rows.
constexpr int kMmaStreamHeadSize = 128;
int hsa_stream_mma_shared_memory(const HsaStreamProblem& p);                           // bytes a block needs at least
int64_t hsa_stream_partials(const HsaStreamProblem& p, const StreamHeights& heights);  // numbers, per stream
cudaError_t hsa_stream_forward_mma(const StreamCall& call);
cudaError_t hsa_stream_backward_mma(const StreamCall& call);

// hsa_stream_simt.cu: any storage type and size.
cudaError_t hsa_stream_forward_simt(const StreamCall& call);
cudaError_t hsa_stream_backward_simt(const StreamCall& call);

// hsa_stream_step_simt.cu: one decoding step.
cudaError_t hsa_stream_step_simt(const HsaStreamStep& s, cudaStream_t stream);

inline StreamHeights heights_of(const HsaStreamProblem& p) {
  StreamHeights heights{};
  heights.size[0] = 1;
  for (int64_t size = p.branching; p.tokens / size > 0; size *= p.branching) {
    heights.size[heights.count] = static_cast<int>(size);
    heights.offset[heights.count] = heights.total;
    heights.total += static_cast<int>(p.tokens / size);
    ++heights.count;
  }
  return heights;
}

// Places for all that a call needs, from `start` on; returns how many bytes. `a` may be null.
template <class S>
size_t place_stream(const HsaStreamProblem& p, bool backward, void* start, StreamArgs<S>* a) {
  StreamArgs<S> none{};
  StreamArgs<S>& to = a == nullptr ? none : *a;
  to.heights = heights_of(p);
  size_t used = 0;
  auto take = [&](auto*& pointer, int64_t count) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(static_cast<char*>(start) + used);
    used += (static_cast<size_t>(count) * sizeof(*pointer) + 255) / 256 * 256;
  };
  const int64_t streams = p.batch * p.heads, nodes = streams * to.heights.total;
  if (backward && p.positions != nullptr) take(to.positions, p.heads * p.heights * p.branching * p.branching);
  take(to.mass, nodes);
  take(to.kappa, nodes);
  take(to.k, nodes * p.head_size);
  take(to.v, nodes * p.value_size);
  if (sizeof(S) == 2) {
    take(to.rounded_k, nodes * p.head_size);
    take(to.rounded_v, nodes * p.value_size);
  }
  if (!backward) return used;
  take(to.dk, nodes * p.head_size);
  take(to.dv, nodes * p.value_size);
  take(to.dkappa, nodes);
  take(to.deltas, streams * p.tokens);
  take(to.partials, sizeof(S) == 2 ? streams * hsa_stream_partials(p, to.heights) : 0);
  if (p.weights.data != nullptr) {
    take(to.leaf_dkappa, streams * p.tokens);
    take(to.dmass, nodes);
  }
  return used;
}

template <class S>
StreamArgs<S> stream_args(const StreamCall& call) {
  StreamArgs<S> a{};
  place_stream(call.p, call.g != nullptr, call.workspace, &a);
  a.p = call.p;
  a.o = call.o;
  if (call.g != nullptr) a.g = *call.g;
  if (call.g == nullptr || call.g->dpositions == nullptr) a.positions = nullptr;
  if (call.g == nullptr || call.g->dweights.data == nullptr) a.leaf_dkappa = a.dmass = nullptr;
  return a;
}
inline int64_t stream_position_entries(const HsaStreamProblem& p) {
  return p.heads * p.heights * p.branching * p.branching;
}

}  // namespace strata::cuda
