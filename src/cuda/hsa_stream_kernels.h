// The CUDA kernels of streaming attention (docs/MATH.md, sections 2.5 and 3). hsa_stream_cuda.cc has checked the
// arguments and chosen the kernels; launchers queue everything on the stream. A key stream is one sequence and key
// head, a query stream one sequence and query head.
#pragma once

#include <algorithm>
#include <type_traits>

#include "base/philox.h"
#include "cuda/divide.h"
#include "cuda/storage.h"
#include "strata/cuda.h"

namespace strata::cuda {

// The nodes of every height above the leaves that some token sees, one height after the other.
struct StreamHeights {
  static constexpr int kMax = 32;
  int near = 1;  // at most the number of tokens
  int count = 1;
  Divisor branching, heads, group;  // group: query heads of a key head
  Divisor by_size[kMax];
  int total = 0;     // inner nodes
  int size[kMax];    // tokens of a node
  int offset[kMax];  // of a height's first node among all inner nodes
  int nodes[kMax];
};

template <class S>
struct StreamArgs {
  using C = typename ComputeOf<S>::Type;
  HsaStreamProblem p;
  HsaStreamOutputs o;
  HsaStreamGradients g;
  StreamHeights heights;
  // Of inner nodes: (key stream, node), for k also (level, channel), for v (channel). term: log(mass) + kappa.
  C *mass, *kappa, *term, *k, *v;
  S *rounded_k, *rounded_v;  // operands of the tensor cores
  C *dk, *dv, *dkappa;       // of inner nodes
  C* deltas;                 // (query stream, token): <dout, out> - dlse; for tensor cores after lse in base 2
  C* partials;               // gradients of entries, by splits of the queries
  C *leaf_dkappa, *dmass;    // (key stream, token) and (key stream, node); null: not wanted
  C* level_parts;            // (query stream, level, token): parts of the gradient of the level weights; null: ditto
  long long* positions;      // in fixed point; null: not wanted
  uint32_t drop_threshold;   // of dropout; 0: none
  C kept_factor;
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

// hsa_stream_weights.cu: the gradient of the leaves' weights, from those of all entries, and that of the level weights
// from `parts` parts of every query stream and level; each does nothing where it is not wanted.
template <class S>
cudaError_t hsa_stream_weight_gradient(const StreamArgs<S>& a, cudaStream_t stream);
template <class S>
cudaError_t hsa_stream_level_gradient(const StreamArgs<S>& a, int level, int64_t parts, cudaStream_t stream);

// hsa_stream_forward_mma.cu, hsa_stream_query_mma.cu, hsa_stream_entry_mma.cu: bfloat16 and float16, heads up to 128
// channels, aligned rows.
constexpr int kMmaStreamHeadSize = 128;
bool hsa_stream_mma_fits(const HsaStreamProblem& p);                                   // into shared memory
int64_t hsa_stream_partials(const HsaStreamProblem& p, const StreamHeights& heights);  // numbers, per key stream
cudaError_t hsa_stream_forward_mma(const StreamCall& call);
cudaError_t hsa_stream_backward_mma(const StreamCall& call);
template <class T>
cudaError_t hsa_stream_entry_gradient_mma(const StreamArgs<T>& a, cudaStream_t stream);  // the part of the entries
bool hsa_stream_entry_mma_fits(const HsaStreamProblem& p);

// hsa_stream_simt.cu: any storage type and size.
cudaError_t hsa_stream_forward_simt(const StreamCall& call);
cudaError_t hsa_stream_backward_simt(const StreamCall& call);

// hsa_stream_certificate.cu: after what a forward needs, the workspace has room for radii: (key stream, node, levels +
// 1).
cudaError_t hsa_stream_certificate_simt(const StreamCall& call, void* bound);

// hsa_stream_step_simt.cu: one decoding step.
cudaError_t hsa_stream_step_simt(const HsaStreamStep& s, cudaStream_t stream);

inline StreamHeights heights_of(const HsaStreamProblem& p) {
  StreamHeights heights{};
  heights.near = static_cast<int>(std::min<int64_t>(p.near, p.tokens));
  heights.branching = Divisor(std::max(1, p.branching));
  heights.heads = Divisor(std::max<int64_t>(1, p.heads));  // a workspace may be asked for before the problem is checked
  heights.group = Divisor(p.key_heads > 0 ? p.heads / p.key_heads : 1);
  heights.size[0] = 1;
  heights.nodes[0] = static_cast<int>(p.tokens);
  for (int64_t size = p.branching;; size *= p.branching) {
    // Causal: nodes up to the last token's ancestor minus n. Both sides: all, as soon as two are n apart.
    const int64_t all = (p.tokens + size - 1) / size;
    if (all <= p.near) return heights;
    heights.size[heights.count] = static_cast<int>(size);
    heights.by_size[heights.count] = Divisor(size);
    heights.offset[heights.count] = heights.total;
    heights.nodes[heights.count] = static_cast<int>(p.both_sides ? all : all - p.near);
    heights.total += heights.nodes[heights.count];
    ++heights.count;
  }
}

inline int64_t stream_position_entries(const HsaStreamProblem& p) {
  return p.heads * p.heights * hsa_stream_distances(p.near, p.both_sides) * p.branching * p.branching;
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
  const int64_t queries = p.batch * p.heads, keys = p.batch * p.key_heads, nodes = keys * to.heights.total;
  const int64_t key_channels = int64_t{p.levels} * p.head_size;
  if (backward && p.positions != nullptr) take(to.positions, stream_position_entries(p));
  for (auto* pointer : {&to.mass, &to.kappa, &to.term}) take(*pointer, nodes);
  take(to.k, nodes * key_channels);
  take(to.v, nodes * p.value_size);
  if (sizeof(S) == 2) {
    take(to.rounded_k, nodes * key_channels);
    take(to.rounded_v, nodes * p.value_size);
  }
  if (!backward) return used;
  take(to.dk, nodes * key_channels);
  take(to.dv, nodes * p.value_size);
  take(to.dkappa, nodes);
  take(to.deltas, queries * p.tokens * (sizeof(S) == 2 ? 2 : 1));
  take(to.partials, sizeof(S) == 2 ? keys * hsa_stream_partials(p, to.heights) : 0);
  if (p.weights.data != nullptr) {
    take(to.leaf_dkappa, keys * p.tokens);
    take(to.dmass, nodes);
  }
  if (p.level_weights != nullptr) take(to.level_parts, queries * p.levels * p.tokens);
  return used;
}

template <class S>
StreamArgs<S> stream_args(const StreamCall& call) {
  StreamArgs<S> a{};
  place_stream(call.p, call.g != nullptr, call.workspace, &a);
  a.p = call.p;
  a.o = call.o;
  if (call.g != nullptr) a.g = *call.g;
  a.drop_threshold = dropout_threshold(call.p.dropout.probability);
  a.kept_factor = static_cast<typename StreamArgs<S>::C>(dropout_factor(a.drop_threshold));
  if (call.g == nullptr || call.g->dpositions == nullptr) a.positions = nullptr;
  if (call.g == nullptr || call.g->dweights.data == nullptr) a.leaf_dkappa = a.dmass = nullptr;
  if (call.g == nullptr || call.g->dlevel_weights == nullptr) a.level_parts = nullptr;
  return a;
}

}  // namespace strata::cuda
