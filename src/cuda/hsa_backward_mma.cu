// HSA backward on trees of families of at most 16 children, with mma.sync (hsa_mma.cuh; docs/MATH.md, section 2.4).
// With P the attention within a family, its diagonal the own mass, and R = Y V^T, its diagonal mbar:
//   mu_c = sum_b P_cb R_cb        G_cb = P_cb (m (R_cb - mu_c) + fbar |c| / |A|)
//   dq_c = s sum_b G_cb k_b       dk_b = s sum_c G_cb q_c       dv_b = m sum_c P_cb Y_c       plus shares of A's own
// The diagonal is part of these sums for leaves; a node takes it down, as fbar and m.
#include "cuda/hsa_mma.cuh"

namespace strata::cuda {
namespace {

template <class T, int D>
struct BackwardFamily : FamilyTile<T, D, 4> {
  using Base = FamilyTile<T, D, 4>;
  float P[2][4] = {}, R[2][4] = {}, Z[2], mu[2] = {};

  __device__ BackwardFamily(const HsaArgs<T>& a, const ConstView& dout, int64_t family, int64_t head, uint32_t memory)
      : Base(a, dout, family, head, memory) {
    this->attention(P, Z);
    this->products(R, kY, kV);
    const float mbar = this->lane < this->size && this->child < 0 ? a.n.mbar[this->head.node(~this->child)] : 0.0f;
    this->each([&](int half, int n, int i, int y) {
      const float node_mbar = __shfl_sync(~0u, mbar, y);
      const bool is_node = __shfl_sync(~0u, this->child, y) < 0;
      if (y == this->row(half) && is_node) R[n][i] = node_mbar;
      if (P[n][i] != 0) mu[half] += P[n][i] * R[n][i];
    });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      mu[half] = quad_sum(mu[half]);
      if (!(__shfl_sync(~0u, this->weight, this->row(half)) > 0)) mu[half] = 0;
    }
  }

  // What the weight of child `lane` gets through the family's f and means:
  //   (fbar (Z_c - f_A) + <dq_A, q_c - q_A> + the same for k, v and kappa) / |A| + dweight_A
  __device__ float weight_from_means(bool root, float fbar, const float (&Zs)[2]) const {
    const NodeNumbers<float>& n = this->a.n;
    const float low = __shfl_sync(~0u, Zs[0], this->lane % 8 * 4), high = __shfl_sync(~0u, Zs[1], this->lane % 8 * 4);
    if (!(this->weight > 0)) return 0;
    float sum = fbar * ((this->lane < 8 ? low : high) - n.f[this->node]);
    if (!root) {
      sum += n.dkappa[this->node] * (this->head.kappa(this->child) - n.kappa[this->node]);
      sum += difference(kQ, n.dq, n.q, this->a.p.head_size) + difference(kK, n.dk, n.k, this->a.p.head_size) +
             difference(kV, n.dv, n.v, this->a.p.value_size);
    }
    return sum / this->total + (root ? 0.0f : n.dweight[this->node]);
  }
  __device__ float difference(int which, const float* gradients, const float* means, int channels) const {
    float sum = 0;
    for (int c = 0; c < channels; ++c) {
      const int64_t at = this->node * channels + c;
      uint16_t bits;
      asm volatile("ld.shared.u16 %0, [%1];"
                   : "=h"(bits)
                   : "r"(this->tile(which) + tile_offset<D>(this->lane, c / 8) + c % 8 * 2));
      sum += gradients[at] * (static_cast<float>(reinterpret_cast<const T&>(bits)) - means[at]);
    }
    return sum;
  }
};

template <class T, int D>
__global__ void __launch_bounds__(32 * kFamilyWarps)
    hsa_mma_mass_kernel(const __grid_constant__ HsaArgs<T> a, const __grid_constant__ ConstView dout, int64_t first,
                        int64_t families) {
  using Family = BackwardFamily<T, D>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kFamilyWarps + warp;
  if (item >= families * a.p.heads) return;
  const Family f(a, dout, first + item / a.p.heads, item % a.p.heads, shared_address(memory) + warp * Family::kMemory);
  f.store_node(f.Z);
  f.sum_rows(kY, a.n.Y, a.p.value_size, 1.0f, 1.0f);  // rows that do not count are zeros
  float mbar = f.lane % 4 == 0 ? f.mu[0] + f.mu[1] : 0.0f;
  mbar = warp_sum(mbar);
  if (f.lane == 0) a.n.mbar[f.node] = mbar;
}

// A 16 x 16 operand, transposed, through shared memory.
__device__ void transpose(uint32_t (&to)[4], const uint32_t (&from)[4], uint32_t scratch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();
#pragma unroll
  for (int r = 0; r < 4; ++r)  // rows of 32 bytes
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(scratch + (lane / 4 + r % 2 * 8) * 32 + r / 2 * 16 + lane % 4 * 4),
                 "r"(from[r]));
  __syncwarp();
  ldmatrix_trans(to, scratch + (lane / 16 * 8 + lane % 8) * 32 + lane / 8 % 2 * 16);
}

template <class T, int D>
__global__ void __launch_bounds__(32 * kFamilyWarps)
    hsa_mma_gradient_kernel(const __grid_constant__ HsaArgs<T> a, const __grid_constant__ HsaGradients g,
                            long long* positions, int64_t first, int64_t families, bool root) {
  using Family = BackwardFamily<T, D>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const HsaProblem& p = a.p;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kFamilyWarps + warp;
  if (item >= families * p.heads) return;
  const int64_t family = first + item / p.heads;
  const uint32_t start = shared_address(memory) + warp * (Family::kMemory + kFamilyScratch),
                 scratch = start + Family::kMemory;
  Family f(a, g.dout, family, item % p.heads, start);
  const float m = root ? 1.0f : a.n.m[f.node];
  const float fbar = !root ? a.n.fbar[f.node]
                     : g.dscore == nullptr
                         ? 0.0f
                         : static_cast<const float*>(g.dscore)[a.plan.sequence[family] * p.heads + f.head.head];
  int32_t child[2];
  float share[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    child[half] = __shfl_sync(~0u, f.child, f.row(half));
    share[half] = f.total > 0 ? __shfl_sync(~0u, f.weight, f.row(half)) / f.total : 0.0f;
  }
  float G[2][4];
  f.each([&](int half, int n, int i, int y) {
    const bool real = share[half] > 0 && f.P[n][i] != 0;  // rows that do not count give nothing
    G[n][i] = real ? f.P[n][i] * (m * (f.R[n][i] - f.mu[half]) + fbar * share[half]) : 0.0f;
    f.P[n][i] = real ? f.P[n][i] * m : 0.0f;
    if (positions != nullptr && y != f.row(half) && G[n][i] != 0) {
      const int64_t at = f.head.position(family, f.row(half), y);
      if (at >= 0) add_fixed_point(positions + at, G[n][i]);
    }
    if (y != f.row(half) || y >= f.size || child[half] >= 0) return;
    const int64_t to = f.head.node(~child[half]);
    a.n.m[to] = f.P[n][i];
    a.n.fbar[to] = G[n][i];
    f.P[n][i] = G[n][i] = 0;
  });
  const bool weights = g.dweights.data != nullptr;
  const float from_means = weights ? f.weight_from_means(root, fbar, f.Z) : 0.0f;
  // The sum over a column is what its key bias gets, and the logarithm of its weight.
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float sum = G[n][e] + G[n][2 + e];
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) sum += __shfl_xor_sync(~0u, sum, offset);
      const int y = f.place(n, e);
      const float w = __shfl_sync(~0u, f.weight, y);
      const int32_t c = __shfl_sync(~0u, f.child, y);
      const float means = __shfl_sync(~0u, from_means, y);
      if (f.lane >= 4 || y >= f.size) continue;
      if (weights) {
        const float dweight = w > 0 ? sum / w + means : 0.0f;
        (c < 0 ? a.n.dweight[f.head.node(~c)] : *f.head.template row<float>(g.dweights, c)) = dweight;
      }
      const float dkappa = w > 0 ? sum + (root ? 0.0f : w / f.total * a.n.dkappa[f.node]) : 0.0f;
      if (c < 0) {
        a.n.dkappa[f.head.node(~c)] = dkappa;
      } else if (g.dkey_bias.data != nullptr) {
        *f.head.template row<float>(g.dkey_bias, c) = dkappa;
      }
    }
  }
  auto store = [&](const View& view, float* nodes, int channels, const uint32_t(&left)[4], int which, float factor) {
    const float* above = root ? nullptr : nodes + f.node * channels;
    T* leaf_rows[2];
    float* node_rows[2];
    for (int half = 0; half < 2; ++half) {
      leaf_rows[half] = child[half] < 0 ? nullptr : f.head.template row<T>(view, child[half]);
      node_rows[half] = child[half] < 0 ? nodes + f.head.node(~child[half]) * channels : nullptr;
    }
    f.spread(left, which, channels, [&](int half, int channel, float2 x) {
      x.x *= factor;
      x.y *= factor;
      if (above != nullptr) x.x += share[half] * above[channel], x.y += share[half] * above[channel + 1];
      if (leaf_rows[half] != nullptr) {
        *reinterpret_cast<uint32_t*>(leaf_rows[half] + channel) = pack(x.x, x.y, T());
      } else {
        *reinterpret_cast<float2*>(node_rows[half] + channel) = x;
      }
    });
  };
  uint32_t forth[4], masses[4], back[4], values[4];
  tile_operand<T>(forth, G);
  tile_operand<T>(masses, f.P);
  transpose(back, forth, scratch);
  transpose(values, masses, scratch);
  const float scale = static_cast<float>(p.scale);
  store(g.dq[0], a.n.dq, p.head_size, forth, kK, scale);
  store(g.dk[0], a.n.dk, p.head_size, back, kQ, scale);
  store(g.dv, a.n.dv, p.value_size, values, kY, 1.0f);
}

template <class T, int D>
cudaError_t backward(const HsaCall& call, const HsaGradients& g) {
  const HsaPlan& plan = call.plan;
  const HsaArgs<T> a = hsa_args<T>(call, true);
  const FixedPointTable positions = position_gradients(call, g);
  const auto up = hsa_mma_mass_kernel<T, D>;
  const auto down = hsa_mma_gradient_kernel<T, D>;
  constexpr int kUp = kFamilyWarps * BackwardFamily<T, D>::kMemory, kDown = kUp + kFamilyWarps * kFamilyScratch;
  if (const cudaError_t e = allow_shared_memory(up, kUp); e != cudaSuccess) return e;
  if (const cudaError_t e = allow_shared_memory(down, kDown); e != cudaSuccess) return e;
  if (const cudaError_t e = positions.clear(call.stream); e != cudaSuccess) return e;
  for (int64_t depth = depths_of(plan) - 1; depth >= 0; --depth)
    up<<<family_blocks(call, depth), 32 * kFamilyWarps, kUp, call.stream>>>(a, g.dout, plan.depth_begin[depth],
                                                                            families_at(plan, depth));
  for (int64_t depth = 0; depth < depths_of(plan); ++depth)
    down<<<family_blocks(call, depth), 32 * kFamilyWarps, kDown, call.stream>>>(
        a, g, positions.data, plan.depth_begin[depth], families_at(plan, depth), depth == 0);
  return positions.convert(static_cast<float*>(g.dpositions), call.stream);
}

}  // namespace

cudaError_t hsa_backward_mma(const HsaCall& call, const HsaGradients& g) {
  return with_16_bit_storage(call.p.dtype, [&](auto t) {
    return has_small_heads(call.p) ? backward<decltype(t), 64>(call, g) : backward<decltype(t), 128>(call, g);
  });
}

}  // namespace strata::cuda
