// HSA backward with mma.sync (hsa_mma.cuh; wide families are in hsa_wide_mma.cuh; docs/MATH.md, section 2.4).
// With P the attention within a family, its diagonal the own mass, and R = Y V^T, its diagonal mbar:
//   mu_c = sum_b P_cb R_cb        G_cb = P_cb (m (R_cb - mu_c) + fbar |c| / |A|)
//   dq_c = s sum_b G_cb k_b       dk_b = s sum_c G_cb q_c       dv_b = m sum_c P_cb Y_c       plus shares of A's own
// The diagonal is part of these sums for leaves; a node takes it down, as fbar and m.
#include "cuda/hsa_mma.cuh"
#include "cuda/hsa_wide_kernels.h"

namespace strata::cuda {
namespace {

template <class T, int D, bool kOneLevel>
struct BackwardFamily : FamilyTile<T, D, kOneLevel> {
  using Base = FamilyTile<T, D, kOneLevel>;
  float P[2][4] = {}, R[2][4] = {}, Z[2], mu[2] = {};

  __device__ BackwardFamily(const HsaArgs<T>& a, const ConstView& dout, int64_t family, int64_t head, uint32_t memory)
      : Base(a, dout, family, head, memory) {
    this->attention(P, Z);
    rows_by_rows<T, D>(R, this->Y_tile(), this->v_tile());
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
      for (int level = 0; level < this->levels(); ++level) {
        const int64_t at = this->head.level_row(this->node, level);
        sum += difference(this->q_tile(level), level, n.dq + at, n.q + at, this->a.p.head_size) +
               difference(this->k_tile(level), level, n.dk + at, n.k + at, this->a.p.head_size);
      }
      const int64_t at = this->node * this->a.p.value_size;
      sum += difference(this->v_tile(), 0, n.dv + at, n.v + at, this->a.p.value_size);
    }
    return sum / this->total + (root ? 0.0f : n.dweight[this->node]);
  }
  __device__ float difference(uint32_t tile, int level, const float* gradients, const float* means,
                              int channels) const {
    float sum = 0;
    const int row = this->slot(level, this->lane);
    for (int c = 0; c < channels; ++c) {
      uint16_t bits;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(tile + tile_offset<D>(row, c / 8) + c % 8 * 2));
      sum += gradients[c] * (static_cast<float>(reinterpret_cast<const T&>(bits)) - means[c]);
    }
    return sum;
  }
};

template <class T, int D, bool kOneLevel>
__global__ void __launch_bounds__(32 * kFamilyWarps)
    hsa_mma_mass_kernel(const __grid_constant__ HsaArgs<T> a, const __grid_constant__ ConstView dout, int64_t first,
                        int64_t families, int warp_memory) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const FamilyItem item(first, families, a.p.heads);
  if (!item.exists) return;
  const BackwardFamily<T, D, kOneLevel> f(a, dout, item.family, item.head,
                                          shared_address(memory) + warp_of_thread() * warp_memory);
  f.store_node(f.Z);
  // Rows that do not count are zeros.
  f.sum_rows(f.Y_tile(), 0, a.n.Y + f.node * a.p.value_size, a.p.value_size, 1.0f, 1.0f);
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

template <class T>
struct GradientArgs {
  HsaArgs<T> a;
  HsaGradients g;
  long long* positions;
  bool root;
};

// A family on the way down: G and, in P, m P. The diagonal of a node goes down and becomes zero.
template <class T, int D, bool kOneLevel>
struct GradientFamily : BackwardFamily<T, D, kOneLevel> {
  const GradientArgs<T>& args;
  float m, fbar, share[2], G[2][4];
  int32_t children[2];  // of this lane's rows

  __device__ GradientFamily(const GradientArgs<T>& all, const FamilyItem& item, uint32_t memory)
      : BackwardFamily<T, D, kOneLevel>(all.a, all.g.dout, item.family, item.head, memory), args(all) {
    const HsaArgs<T>& a = args.a;
    m = args.root ? 1.0f : a.n.m[this->node];
    fbar = !args.root ? a.n.fbar[this->node]
           : args.g.dscore == nullptr
               ? 0.0f
               : static_cast<const float*>(args.g.dscore)[this->head.sequence * a.p.heads + this->head.head];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      children[half] = __shfl_sync(~0u, this->child, this->row(half));
      const float w = __shfl_sync(~0u, this->weight, this->row(half));
      share[half] = this->total > 0 ? w / this->total : 0.0f;
    }
    this->each([&](int half, int n, int i, int y) {
      float& p = this->P[n][i];
      const bool real = share[half] > 0 && p != 0;  // rows that do not count give nothing
      G[n][i] = real ? p * (m * (this->R[n][i] - this->mu[half]) + fbar * share[half]) : 0.0f;
      p = real ? p * m : 0.0f;
      if (args.positions != nullptr && y != this->row(half) && G[n][i] != 0) {
        const int64_t at = this->head.position(this->family, this->row(half), y);
        if (at >= 0) add_fixed_point(args.positions + at, G[n][i]);
      }
      if (y != this->row(half) || y >= this->size || children[half] >= 0) return;
      const int64_t to = this->head.node(~children[half]);
      a.n.m[to] = p;
      a.n.fbar[to] = G[n][i];
      p = G[n][i] = 0;
    });
  }

  // The sum over a column is what its key bias gets, and the logarithm of its weight.
  __device__ void store_scalars() const {
    const HsaArgs<T>& a = args.a;
    const HsaGradients& g = args.g;
    const bool weights = g.dweights.data != nullptr;
    const float from_means = weights ? this->weight_from_means(args.root, fbar, this->Z) : 0.0f;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = G[n][e] + G[n][2 + e];
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) sum += __shfl_xor_sync(~0u, sum, offset);
        const int y = this->place(n, e);
        const float w = __shfl_sync(~0u, this->weight, y);
        const int32_t c = __shfl_sync(~0u, this->child, y);
        const float means = __shfl_sync(~0u, from_means, y);
        if (this->lane >= 4 || y >= this->size) continue;
        const float dweight = w > 0 ? sum / w + means : 0.0f;
        const float dkappa = w > 0 ? sum + (args.root ? 0.0f : w / this->total * a.n.dkappa[this->node]) : 0.0f;
        if (c < 0) {
          if (weights) a.n.dweight[this->head.node(~c)] = dweight;
          a.n.dkappa[this->head.node(~c)] = dkappa;
        } else if (a.later.dkappa != nullptr) {
          a.later.dweight[this->head.leaf(c)] = dweight;
          a.later.dkappa[this->head.leaf(c)] = dkappa;
        } else {
          if (weights) *this->head.template key_row<float>(g.dweights, c) = dweight;
          if (g.dkey_bias.data != nullptr) *this->head.template key_row<float>(g.dkey_bias, c) = dkappa;
        }
      }
    }
  }

  // left x rows, plus the children's shares of the family's own gradient. level: of rows that are sums over coarse
  // rows, else 0. leaf_row(t): where the row of leaf t goes.
  template <class LeafRow>
  __device__ void store(const uint32_t (&left)[4], uint32_t tile, int tile_level, int level, float factor,
                        const float* shares, float* nodes, int64_t offset, int width, int channels, float* later,
                        const LeafRow& leaf_row) const {
    const float* above = args.root ? nullptr : nodes + this->node * width + offset;
    T* leaf_rows[2];
    float* float_rows[2];  // of nodes, and of leaves that are summed later
    bool writes[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t child = children[half];
      const bool is_node = child < 0;
      writes[half] = is_node || leads_level(this->row(half), level);
      leaf_rows[half] = is_node || later != nullptr ? nullptr : leaf_row(child);
      float_rows[half] = is_node            ? nodes + this->head.node(~child) * width + offset
                         : later != nullptr ? later + this->head.leaf(child) * channels
                                            : nullptr;
    }
    this->spread(left, tile, tile_level, channels, [&](int half, int channel, float2 x) {
      if (!writes[half]) return;
      x.x *= factor;
      x.y *= factor;
      if (above != nullptr) x.x += shares[half] * above[channel], x.y += shares[half] * above[channel + 1];
      if (leaf_rows[half] != nullptr) {
        *reinterpret_cast<uint32_t*>(leaf_rows[half] + channel) = pack(x.x, x.y, T());
      } else {
        *reinterpret_cast<float2*>(float_rows[half] + channel) = x;
      }
    });
  }

  // The left operand of dq, or of dk, of a level: G, or its sums over the leaves of coarse rows in `sums`.
  __device__ void operand(uint32_t (&left)[4], const float (&sums)[2][4], int level, bool columns) const {
    float x[2][4];
    this->each([&](int half, int n, int i, int y) {
      x[n][i] = level == 0 ? G[n][i] : leads_level(columns ? y : this->row(half), level) ? sums[n][i] : 0.0f;
    });
    tile_operand<T>(left, x);
  }

  __device__ void store_levels(uint32_t scratch) const {
    const HsaProblem& p = args.a.p;
    const LeafGradients<float>& later = args.a.later;
    const int width = this->levels() * p.head_size;
    float rows[2][4], columns[2][4], shares[2] = {share[0], share[1]};
    this->each([&](int, int n, int i, int) { rows[n][i] = columns[n][i] = G[n][i]; });
    for (int level = 0; level < this->levels(); ++level) {
      if (level > 0) {
        add_row_pairs(rows, level);
        add_column_pairs(columns, level);
        add_row_pairs(shares, level);
      }
      const int q_level = this->leaves && later.dq[level] == nullptr ? level : 0;
      const int k_level = this->leaves && later.dk[level] == nullptr ? level : 0;
      uint32_t forth[4], columns_left[4], back[4];
      operand(forth, rows, q_level, false);
      operand(columns_left, columns, k_level, true);
      transpose(back, columns_left, scratch);
      const float factor = static_cast<float>(p.scale) * this->head.level_weight(level);
      const int64_t offset = level * p.head_size;
      store(forth, this->k_tile(level), level, q_level, factor, q_level > 0 ? shares : share, args.a.n.dq, offset,
            width, p.head_size, later.dq[level],
            [&](int32_t t) { return this->head.template query_row<T>(args.g.dq[level], t, level); });
      store(back, this->q_tile(level), level, k_level, factor, k_level > 0 ? shares : share, args.a.n.dk, offset, width,
            p.head_size, later.dk[level],
            [&](int32_t t) { return this->head.template key_row<T>(args.g.dk[level], t, level); });
      if (later.level_parts != nullptr) store_level_part(level);
    }
  }
  __device__ void store_level_part(int level) const {
    float x[2][4] = {}, part = 0;
    this->products(x, level);
    this->each([&](int, int n, int i, int) { part += G[n][i] * x[n][i]; });
    part = warp_sum(part);
    const HsaProblem& p = args.a.p;
    if (this->lane == 0)
      args.a.later.level_parts[(this->family * p.heads + this->head.head) * p.levels + level] =
          static_cast<float>(p.scale) * part;
  }
  __device__ void store_values(uint32_t scratch) const {
    const HsaProblem& p = args.a.p;
    uint32_t masses[4], left[4];
    tile_operand<T>(masses, this->P);
    transpose(left, masses, scratch);
    store(left, this->Y_tile(), 0, 0, 1.0f, share, args.a.n.dv, 0, p.value_size, p.value_size, args.a.later.dv,
          [&](int32_t t) { return this->head.template key_row<T>(args.g.dv, t); });
  }
};

template <class T, int D, bool kOneLevel>
__global__ void __launch_bounds__(32 * kFamilyWarps)
    hsa_mma_gradient_kernel(const __grid_constant__ GradientArgs<T> args, int64_t first, int64_t families,
                            int warp_memory) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const FamilyItem item(first, families, args.a.p.heads);
  if (!item.exists) return;
  const uint32_t start = shared_address(memory) + warp_of_thread() * warp_memory,
                 scratch = start + warp_memory - kFamilyScratch;
  const GradientFamily<T, D, kOneLevel> f(args, item, start);
  f.store_scalars();
  f.store_levels(scratch);
  f.store_values(scratch);
}

template <class T, int D, bool kOneLevel>
cudaError_t backward(const HsaCall& call, const HsaGradients& g) {
  const HsaPlan& plan = call.plan;
  const FixedPointTable positions = position_gradients(call, g);
  const GradientArgs<T> args{hsa_args<T>(call, &g, true), g, positions.data, false};
  const auto up = hsa_mma_mass_kernel<T, D, kOneLevel>;
  const auto down = hsa_mma_gradient_kernel<T, D, kOneLevel>;
  const int warp_memory = family_memory(call.p, true), memory = FamilyLaunch(call, 0, true).memory;
  if (const cudaError_t e = allow_shared_memory(up, memory); e != cudaSuccess) return e;
  if (const cudaError_t e = allow_shared_memory(down, memory); e != cudaSuccess) return e;
  if (const cudaError_t e = positions.clear(call.stream); e != cudaSuccess) return e;
  for (int64_t depth = depths_of(plan) - 1; depth >= 0; --depth) {
    const FamilyLaunch launch(call, depth, true);
    if (launch.families > 0)
      up<<<launch.blocks, launch.threads, memory, call.stream>>>(args.a, g.dout, launch.first, launch.families,
                                                                 warp_memory);
    if (const cudaError_t e = hsa_wide_mass(call, args.a, g.dout, depth); e != cudaSuccess) return e;
  }
  for (int64_t depth = 0; depth < depths_of(plan); ++depth) {
    const FamilyLaunch launch(call, depth, true);
    GradientArgs<T> here = args;
    here.root = depth == 0;
    if (launch.families > 0)
      down<<<launch.blocks, launch.threads, memory, call.stream>>>(here, launch.first, launch.families, warp_memory);
    const WideGradientArgs<T> wide{args.a, g, positions.data, here.root};
    if (const cudaError_t e = hsa_wide_gradient(call, wide, depth); e != cudaSuccess) return e;
  }
  const int64_t parts = plan.families + plan_tiles(plan) * tile_warps(plan);
  if (const cudaError_t e = hsa_sum_later(call, args.a, g, parts); e != cudaSuccess) return e;
  return positions.convert(static_cast<float*>(g.dpositions), call.stream);
}

}  // namespace

cudaError_t hsa_backward_mma(const HsaCall& call, const HsaGradients& g) {
  return with_16_bit_storage(call.p.dtype, [&](auto t) {
    using T = decltype(t);
    const bool one_level = call.p.levels == 1;
    if (has_small_heads(call.p)) return one_level ? backward<T, 64, true>(call, g) : backward<T, 64, false>(call, g);
    return one_level ? backward<T, 128, true>(call, g) : backward<T, 128, false>(call, g);
  });
}

}  // namespace strata::cuda
