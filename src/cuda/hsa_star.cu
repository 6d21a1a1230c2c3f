// Star trees: every sequence is one family of all its tokens. Where nothing else takes part (leaf weights, key biases,
// positions), HSA on them is HKT attention with the same levels, and its score the mean of lse; so HKT's kernels
// compute it. docs/MATH.md, section 2: leaves have weight 1, so g(c, b) is the score of c and b.
#include <algorithm>

#include "cuda/cuda_status.h"
#include "cuda/hsa_kernels.h"
#include "cuda/launch.cuh"
#include "cuda/warp.cuh"

namespace strata::cuda {
namespace {

constexpr int64_t kFewestTokens = 256;  // fewer are no more than a few tiles of the kernels for trees

__global__ void fill_kernel(float* to, int64_t count, float value) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < count) to[at] = value;
}
// A warp for each sequence and head: the mean of its lse.
__global__ void score_kernel(const float* lse, int64_t tokens, float* score) {
  double sum = 0;
  for (int64_t t = threadIdx.x; t < tokens; t += 32) sum += lse[blockIdx.x * tokens + t];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) score[blockIdx.x] = static_cast<float>(sum / static_cast<double>(tokens));
}
__global__ void dlse_kernel(const float* dscore, int64_t tokens, int64_t count, float* dlse) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < count) dlse[at] = dscore[at / tokens] / static_cast<float>(tokens);
}

// x[n] = x[0] + n step.
bool is_even(const int64_t* x, int64_t count) {
  for (int64_t n = 2; n < count; ++n) {
    if (x[n] - x[n - 1] != x[1] - x[0]) return false;
  }
  return true;
}
const int64_t* first_rows(const HsaProblem& p, int level) { return level == 0 ? p.first_token : p.first_row[level]; }

// The view whose batch is the sequences.
template <class AnyView>
AnyView of_sequences(const HsaProblem& p, AnyView view, int level) {
  const int64_t *batch = p.batch_of, *row = first_rows(p, level), last = p.sequences > 1 ? 1 : 0;
  auto at = [&](int64_t n) { return batch[n] * view.stride[0] + row[n] * view.stride[2]; };
  const int64_t first = at(0), step = at(last) - first;
  view.data = const_cast<char*>(static_cast<const char*>(view.data)) + 2 * first;
  view.stride[0] = step;
  return view;
}

// Where the workspace has what HKT needs beside the problem; bytes.
struct Places {
  int64_t lse = 0, ones, dweights, dlse, out, workspace, end;
};
Places places_of(const HsaProblem& p, const HktProblem& hkt, bool backward) {
  auto after = [](int64_t at, int64_t bytes) { return (at + bytes + 255) / 256 * 256; };
  const int64_t rows = p.sequences * p.heads * hkt.tokens;
  Places at;
  at.ones = after(at.lse, 4 * rows);
  at.dweights = after(at.ones, 4 * p.heads);
  at.dlse = after(at.dweights, 4 * p.heads * p.levels);
  at.out = after(at.dlse, backward ? 4 * rows : 0);
  at.workspace = after(at.out, backward ? 2 * rows * p.value_size : 0);
  at.end = at.workspace + (backward ? static_cast<int64_t>(hkt_backward_workspace(hkt)) : 0);
  return at;
}

// The forward pass, with the weights it needs.
Status run_forward(const HsaCall& call, HktProblem* hkt, const Places& at, const View& out) {
  char* const base = static_cast<char*>(call.workspace);
  if (hkt->weights == nullptr) {
    auto* const ones = reinterpret_cast<float*>(base + at.ones);
    fill_kernel<<<blocks_for(call.p.heads, 128), 128, 0, call.stream>>>(ones, call.p.heads, 1.0f);
    hkt->weights = ones;
  }
  return hkt_forward(*hkt, {out, base + at.lse}, call.stream);
}

}  // namespace

bool hsa_star(const HsaProblem& p, const HsaPlan& plan, HktProblem* hkt) {
  if (plan.star_tokens < kFewestTokens || p.v.data == nullptr || p.weights.data != nullptr ||
      p.key_bias.data != nullptr || p.positions != nullptr || !is_even(p.batch_of, p.sequences))
    return false;
  for (int l = 0; l < p.levels; ++l) {
    if (!is_even(first_rows(p, l), p.sequences)) return false;
  }
  *hkt = {};
  hkt->dtype = p.dtype;
  hkt->batch = p.sequences;
  hkt->heads = p.heads;
  hkt->key_heads = p.key_heads;
  hkt->tokens = plan.star_tokens;
  hkt->levels = p.levels;
  hkt->head_size = p.head_size;
  hkt->value_size = p.value_size;
  for (int l = 0; l < p.levels; ++l) {
    hkt->q[l] = of_sequences(p, p.q[l], l);
    hkt->k[l] = of_sequences(p, p.k[l], l);
  }
  hkt->v = of_sequences(p, p.v, 0);
  hkt->weights = p.level_weights;
  hkt->causal = p.causal;
  hkt->scale = p.scale;
  const KernelChoice kernels = hkt_kernels(*hkt);
  return p.sequences <= 65535 && kernels.forward != Kernels::kSimt && kernels.backward != Kernels::kSimt;
}

size_t hsa_star_workspace(const HsaProblem& p, const HktProblem& hkt, bool backward) {
  return static_cast<size_t>(places_of(p, hkt, backward).end);
}

Status hsa_star_forward(const HsaCall& call, HktProblem hkt, const HsaOutputs& o) {
  const Places at = places_of(call.p, hkt, false);
  if (Status s = run_forward(call, &hkt, at, of_sequences(call.p, o.out, 0)); !s.ok() || o.score == nullptr) return s;
  score_kernel<<<static_cast<unsigned>(hkt.batch * hkt.heads), 32, 0, call.stream>>>(
      reinterpret_cast<const float*>(static_cast<char*>(call.workspace) + at.lse), hkt.tokens,
      static_cast<float*>(o.score));
  return cuda_status(cudaGetLastError(), "HSA forward");
}

Status hsa_star_backward(const HsaCall& call, HktProblem hkt, const HsaGradients& g) {
  const HsaProblem& p = call.p;
  const Places at = places_of(p, hkt, true);
  char* const base = static_cast<char*>(call.workspace);
  const View out = dense_view(base + at.out, hkt.heads, hkt.tokens, hkt.value_size);
  if (Status s = run_forward(call, &hkt, at, out); !s.ok()) return s;
  HktGradients h;
  h.dout = of_sequences(p, g.dout, 0);
  if (g.dscore != nullptr) {
    auto* const dlse = reinterpret_cast<float*>(base + at.dlse);
    const int64_t rows = hkt.batch * hkt.heads * hkt.tokens;
    dlse_kernel<<<blocks_for(rows, 256), 256, 0, call.stream>>>(static_cast<const float*>(g.dscore), hkt.tokens, rows,
                                                                dlse);
    h.dlse = dlse;
  }
  for (int l = 0; l < p.levels; ++l) {
    h.dq[l] = of_sequences(p, g.dq[l], l);
    h.dk[l] = of_sequences(p, g.dk[l], l);
  }
  h.dv = of_sequences(p, g.dv, 0);
  h.dweights = g.dlevel_weights != nullptr ? g.dlevel_weights : base + at.dweights;
  if (Status s = cuda_status(cudaGetLastError(), "HSA backward"); !s.ok()) return s;
  return hkt_backward(hkt, {out, base + at.lse}, h, base + at.workspace, call.stream);
}

}  // namespace strata::cuda
