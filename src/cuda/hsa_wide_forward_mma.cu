// HSA forward, the wide families of a depth, with mma.sync (hsa_wide_mma.cuh).
#include "cuda/hsa_wide_kernels.h"
#include "cuda/hsa_wide_mma.cuh"

namespace strata::cuda {
namespace {

// Every child's attention on its siblings, as in hsa_mma_up_kernel, and the family's numbers.
template <class T, int D>
__global__ void __launch_bounds__(kMostThreads, D == 64 ? 4 : 2)
    hsa_wide_up_kernel(const __grid_constant__ HsaArgs<T> a, const __grid_constant__ View out, int64_t first_tile,
                       WideShape shape) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const WideTile<T, D> tile(a, blockIdx.x, first_tile, shape, memory);
  const WideParts layout(a.p, false);
  int32_t child[2];
  float own_f[2], acc[D / 8][4] = {};
  tile.own_children(child, own_f);
  tile.load_queries(tile.own_tile(0), tile.first, tile.rows, {});
  TileSoftmax<true> softmax;
  auto add = [&](float(&s)[2][4], int from, int sub) {
    float rescale[2];
    softmax.add(s, rescale);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[n][i] *= rescale[i / 2];
    }
    if (from == tile.mine) {  // a node's own mass goes down, not out
      each_of_tile([&](int half, int n, int i, int y) {
        if (y == tile_row(half) && child[half] < 0) s[n][i] = 0;
      });
    }
    uint32_t left[4];
    tile_operand<T>(left, s);
    const uint32_t values = tile.chunk_tile(a.p.levels) + sub * D * 2;
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) by_rows<T, D>(acc[n], acc[n + 1], left, values, n);
  };
  tile.each_key_tile(own_f, add, [&](int sub) { tile.store_keys_up(layout, sub); });
  if (tile.mine >= tile.size) return;
  float Z[2];
  const float none[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = quad_sum(softmax.sum[half]), inverse = total == 0 ? 0.0f : 1.0f / total;
    Z[half] = (softmax.max[half] + __log2f(total)) * kLn2;
    if (tile.row(half) >= tile.size) continue;
    T* const leaf = child[half] < 0 ? nullptr : tile.head.template query_row<T>(out, child[half]);
    float* const local = child[half] < 0 ? a.n.local + tile.head.node(~child[half]) * a.p.value_size : nullptr;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const int channel = 8 * n + 2 * (lane_of_thread() % 4);
      if (channel >= a.p.value_size) continue;
      const float2 x = make_float2(acc[n][2 * half] * inverse, acc[n][2 * half + 1] * inverse);
      if (leaf != nullptr) {
        *reinterpret_cast<uint32_t*>(leaf + channel) = pack(x.x, x.y, T());
      } else {
        *reinterpret_cast<float2*>(local + channel) = x;
      }
    }
  }
  tile.store_up(layout, child, Z, none, false);
}

}  // namespace

bool hsa_wide_mma_fits(const HsaProblem& p) { return wide_shape(p, kWideTile).columns > 0; }

template <class T>
cudaError_t hsa_wide_up(const HsaCall& call, const HsaArgs<T>& a, const View& out, int64_t depth) {
  const auto kernel = has_small_heads(call.p) ? hsa_wide_up_kernel<T, 64> : hsa_wide_up_kernel<T, 128>;
  if (const cudaError_t e = WideLaunch(call, depth).run(call, kernel, 1, a, out); e != cudaSuccess) return e;
  return sum_wide_families(call, a, depth, false);
}
template cudaError_t hsa_wide_up(const HsaCall&, const HsaArgs<__nv_bfloat16>&, const View&, int64_t);
template cudaError_t hsa_wide_up(const HsaCall&, const HsaArgs<__half>&, const View&, int64_t);

}  // namespace strata::cuda
