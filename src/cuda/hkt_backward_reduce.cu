// The reductions before and after the HKT backward on tensor cores, whichever kernels do it: D of every row, and the
// sum of the parts of da.
#include "cuda/hkt_kernels.h"
#include "cuda/hkt_scores.cuh"
#include "cuda/launch.cuh"
#include "cuda/storage.h"
#include "cuda/tile.cuh"
#include "cuda/views.h"
#include "cuda/warp.cuh"

namespace strata::cuda {
namespace {

constexpr int kDeltaLanes = 8;

// D_i = <dO_i, O_i> - dlse_i, by a few lanes per row. aligned: 16 bytes at a time.
template <class T>
__global__ void delta_kernel(const __grid_constant__ HktProblem p, const __grid_constant__ HktOutputs o,
                             const __grid_constant__ HktGradients g, float* deltas, bool aligned) {
  const int64_t line = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kDeltaLanes;
  if (line >= hkt_lines(p)) return;
  const int lane = static_cast<int>(threadIdx.x) % kDeltaLanes;
  const LineRow at(p, line);
  const int64_t t = at.row;
  const Rows<const T> out = at.rows<const T>(o.out), dout = at.rows<const T>(g.dout);
  float sum = 0;
  if (aligned) {
    for (int c = 8 * lane; c < p.value_size; c += 8 * kDeltaLanes) {
      const uint4 x = *reinterpret_cast<const uint4*>(&out.at(t, c)),
                  y = *reinterpret_cast<const uint4*>(&dout.at(t, c));
      const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 a = unpack(xs[i], T()), b = unpack(ys[i], T());
        sum += a.x * b.x + a.y * b.y;
      }
    }
  } else {
    for (int c = lane; c < p.value_size; c += kDeltaLanes)
      sum += static_cast<float>(out.at(t, c)) * static_cast<float>(dout.at(t, c));
  }
#pragma unroll
  for (int offset = kDeltaLanes / 2; offset > 0; offset /= 2)
    sum += __shfl_xor_sync(0xffu << (threadIdx.x % 32 / kDeltaLanes * kDeltaLanes), sum, offset);
  if (lane == 0) deltas[line] = sum - (g.dlse == nullptr ? 0.0f : static_cast<const float*>(g.dlse)[line]);
}

// da_l of a head: its parts, in a fixed order. A warp each.
__global__ void weight_kernel(const __grid_constant__ HktProblem p, const float* parts, int64_t count,
                              float* dweights) {
  const int64_t head = blockIdx.x / p.levels, l = blockIdx.x % p.levels;
  double sum = 0;
  for (int64_t at = threadIdx.x; at < count; at += 32) sum += parts[(head * count + at) * kMmaLevels + l];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) dweights[blockIdx.x] = static_cast<float>(sum);
}

}  // namespace

cudaError_t hkt_backward_deltas(const HktProblem& p, const HktOutputs& o, const HktGradients& g, float* deltas,
                                cudaStream_t stream) {
  if (hkt_lines(p) == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(hkt_lines(p), 256 / kDeltaLanes);
  const bool aligned = is_aligned(o.out, p.value_size) && is_aligned(g.dout, p.value_size);
  return with_16_bit_storage(p.dtype, [&](auto storage) {
    delta_kernel<decltype(storage)><<<blocks, 256, 0, stream>>>(p, o, g, deltas, aligned);
    return cudaGetLastError();
  });
}

cudaError_t hkt_backward_weights(const HktProblem& p, const float* parts, int64_t count, const HktGradients& g,
                                 cudaStream_t stream) {
  weight_kernel<<<static_cast<unsigned>(p.heads * p.levels), 32, 0, stream>>>(p, parts, count,
                                                                              static_cast<float*>(g.dweights));
  return cudaGetLastError();
}

}  // namespace strata::cuda
