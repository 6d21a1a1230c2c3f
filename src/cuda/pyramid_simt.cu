// All levels of a depthwise pyramid in one pass (include/strata/pyramid.h), bound by memory. A thread has one channel
// of kChunk tokens and walks along them, with the newest states of every level in registers. So that chunks need
// nothing from each other, it begins before its chunk (forward) or behind it (backward) and computes what it needs of
// the neighbour once more.
#include <algorithm>

#include "cuda/launch.cuh"
#include "cuda/pyramid_kernels.h"
#include "cuda/storage.h"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128, kTaps = kPyramidTaps;
constexpr int kChunk = 64;            // tokens; a multiple of the rows of every level
constexpr int64_t kMostParts = 1024;  // of the gradients of the filters
constexpr int kChannels = 32, kLines = 8;

template <class S, class C>
__device__ C read(const void* from, int64_t at) {
  return static_cast<C>(static_cast<const S*>(from)[at]);
}

// What a thread works on: one channel of one sequence.
template <class X>
struct Channel {
  using C = typename ComputeOf<X>::Type;
  const Pyramid& p;
  int64_t sequence, channel, real;  // real: tokens that are not padding

  __device__ Channel(const Pyramid& pyramid, int64_t b, int64_t c)
      : p(pyramid),
        sequence(b),
        channel(c),
        real(p.lengths == nullptr ? p.tokens
                                  : min(static_cast<long long>(p.lengths[b]), static_cast<long long>(p.tokens))) {}
  __device__ int64_t at(int level, int64_t row) const {
    return (sequence * ((p.tokens + (int64_t{1} << level) - 1) >> level) + row) * p.channels + channel;
  }
  __device__ C x(int64_t t) const { return t >= 0 && t < real ? read<X, C>(p.x, at(0, t)) : C(0); }
  __device__ C weight(int level, int tap) const { return read<X, C>(p.weight[level], tap * p.channels + channel); }
};

template <class X, class S, int L>
__global__ void __launch_bounds__(kThreads)
    pyramid_forward_kernel(const __grid_constant__ Pyramid p, const __grid_constant__ PyramidStates states,
                           int64_t chunks) {
  using C = typename ComputeOf<X>::Type;
  constexpr int kGroup = L > 4 ? 1 << (L - 1) : 8;  // tokens loaded together
  constexpr int kBefore = L > 1 ? (1 << L) : 0;     // tokens in front of a chunk that its coarse rows depend on
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (c >= p.channels) return;
  const Channel<X> channel(p, blockIdx.x / chunks, c);
  const int64_t begin = blockIdx.x % chunks * kChunk;
  C weight[L][kTaps], newest[L][kTaps] = {};
#pragma unroll
  for (int l = 1; l < L; ++l) {
#pragma unroll
    for (int r = 0; r < kTaps; ++r) weight[l][r] = channel.weight(l, r);
  }
  const int64_t end = begin + kChunk < p.tokens ? begin + kChunk : p.tokens;
  int64_t group = begin - (kBefore + kGroup - 1) / kGroup * kGroup;
  for (group = group < 0 ? 0 : group; group < end; group += kGroup) {
    C loaded[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) loaded[i] = channel.x(group + i);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int64_t t = group + i;
      C state = loaded[i];
#pragma unroll
      for (int l = 0; l < L; ++l) {
        if (i % (1 << l) != 0) break;
        if (l > 0) {
          state = 0;
#pragma unroll
          for (int r = 0; r < kTaps; ++r) state += weight[l][r] * newest[l - 1][r];
        }
#pragma unroll
        for (int r = kTaps - 1; r > 0; --r) newest[l][r] = newest[l][r - 1];
        newest[l][0] = state;
        if (t >= begin && t < end) static_cast<S*>(states.state[l])[channel.at(l, t >> l)] = static_cast<S>(state);
      }
    }
  }
}

// d^(l)_j = dstate^(l)_j + sum over r with j + r = 2 m of W_r d^(l+1)_m, from the last token to the first; d^(0) is dx.
// dW^(l)_r = sum_m d^(l)_m state^(l-1)_{2 m - r}: each block has a part of it, (parts, levels - 1, taps, channels).
template <class X, class S, int L>
__global__ void __launch_bounds__(kThreads)
    pyramid_backward_kernel(const __grid_constant__ Pyramid p, const __grid_constant__ PyramidStates states,
                            const __grid_constant__ PyramidStates dstates, X* dx, int64_t chunks,
                            typename ComputeOf<X>::Type* parts) {
  using C = typename ComputeOf<X>::Type;
  constexpr int kGroup = 1 << (L - 1);
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (c >= p.channels) return;
  C weight[L][kTaps], sum[L][kTaps] = {};
  for (int64_t chunk = blockIdx.x; chunk < p.batch * chunks; chunk += gridDim.x) {
    const Channel<X> channel(p, chunk / chunks, c);
#pragma unroll
    for (int l = 1; l < L; ++l) {
#pragma unroll
      for (int r = 0; r < kTaps; ++r) weight[l][r] = channel.weight(l, r);
    }
    const int64_t begin = chunk % chunks * kChunk;
    C now[L] = {}, later[L] = {};  // of each level: the row computed last, and the one behind it
    for (int64_t group = begin + kChunk + (L > 1 ? kGroup : 0); group >= begin; group -= kGroup) {
#pragma unroll
      for (int i = kGroup - 1; i >= 0; --i) {
        const int64_t t = group + i;
        if (t >= begin + kChunk + kGroup + 1) continue;
#pragma unroll
        for (int l = L - 1; l >= 0; --l) {
          if (i % (1 << l) != 0) continue;
          const bool own = t < begin + kChunk;
          if (l == 0 && !own) continue;
          C d = t < p.tokens ? read<S, C>(dstates.state[l], channel.at(l, t >> l)) : C(0);
          if (l + 1 < L) {
            if (i % (1 << (l + 1)) == 0) {
              d += weight[l + 1][0] * now[l + 1] + weight[l + 1][2] * later[l + 1];
            } else {
              d += weight[l + 1][1] * now[l + 1];
            }
          }
          later[l] = now[l];
          now[l] = d;
          if (l == 0) {
            if (t < p.tokens) dx[channel.at(0, t)] = static_cast<X>(t < channel.real ? d : C(0));
          } else if (own && t < p.tokens) {
            const int64_t row = t >> l;
#pragma unroll
            for (int r = 0; r < kTaps; ++r) {
              const int64_t below = 2 * row - r;
              const C state = l == 1       ? channel.x(below)
                              : below >= 0 ? read<S, C>(states.state[l - 1], channel.at(l - 1, below))
                                           : C(0);
              sum[l][r] += d * state;
            }
          }
        }
      }
    }
  }
#pragma unroll
  for (int l = 1; l < L; ++l) {
#pragma unroll
    for (int r = 0; r < kTaps; ++r)
      parts[((static_cast<int64_t>(blockIdx.x) * (L - 1) + l - 1) * kTaps + r) * p.channels + c] = sum[l][r];
  }
}

// Adds the parts in order. A block has kChannels channels of one tap of one level.
template <class X>
__global__ void pyramid_sum_kernel(const typename ComputeOf<X>::Type* parts, int64_t count, int64_t channels,
                                   const __grid_constant__ PyramidStates dweights) {
  using C = typename ComputeOf<X>::Type;
  __shared__ C lines[kLines][kChannels];
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kChannels + threadIdx.x, filter = blockIdx.y,
                filters = gridDim.y;
  C sum = 0;
  for (int64_t part = threadIdx.y; part < count && c < channels; part += kLines)
    sum += parts[(part * filters + filter) * channels + c];
  lines[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= channels) return;
  C all = 0;
  for (const auto& line : lines) all += line[threadIdx.x];
  static_cast<X*>(dweights.state[1 + filter / kTaps])[filter % kTaps * channels + c] = static_cast<X>(all);
}

int64_t chunks_of(const Pyramid& p) { return (p.tokens + kChunk - 1) / kChunk; }
int64_t parts_of(const Pyramid& p) { return std::min<int64_t>(p.batch * chunks_of(p), kMostParts); }

template <class Run>
cudaError_t with_levels(int levels, const Run& run) {
  switch (levels) {
    case 1:
      return run(std::integral_constant<int, 1>{});
    case 2:
      return run(std::integral_constant<int, 2>{});
    case 3:
      return run(std::integral_constant<int, 3>{});
    case 4:
      return run(std::integral_constant<int, 4>{});
    case 5:
      return run(std::integral_constant<int, 5>{});
  }
  return cudaErrorInvalidValue;
}

// Calls run(X{}, S{}) with the types of x and of the states.
template <class Run>
cudaError_t with_types(const Pyramid& p, const Run& run) {
  return with_storage(p.dtype, [&](auto x) {
    using X = decltype(x);
    if (p.dtype == p.state_dtype) return run(x, x);
    if constexpr (std::is_same_v<X, float>)
      return with_16_bit_storage(p.state_dtype, [&](auto state) { return run(x, state); });
    return cudaErrorInvalidValue;
  });
}

}  // namespace

cudaError_t pyramid_forward_simt(const Pyramid& p, const PyramidStates& states, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(p.batch * chunks_of(p)), blocks_for(p.channels, kThreads));
  return with_types(p, [&](auto x, auto state) {
    return with_levels(p.levels, [&](auto levels) {
      pyramid_forward_kernel<decltype(x), decltype(state), levels.value>
          <<<grid, kThreads, 0, stream>>>(p, states, chunks_of(p));
      return cudaGetLastError();
    });
  });
}

size_t pyramid_backward_workspace_simt(const Pyramid& p) {
  return compute_size(p.dtype) *
         static_cast<size_t>(std::max<int64_t>(1, parts_of(p) * (p.levels - 1) * kTaps * p.channels));
}

cudaError_t pyramid_backward_simt(const Pyramid& p, const PyramidStates& states, const PyramidGradients& g,
                                  void* workspace, cudaStream_t stream) {
  const int64_t count = parts_of(p);
  const dim3 grid(static_cast<unsigned>(count), blocks_for(p.channels, kThreads));
  return with_types(p, [&](auto x, auto state) {
    using X = decltype(x);
    using C = typename ComputeOf<X>::Type;
    return with_levels(p.levels, [&](auto levels) {
      C* parts = static_cast<C*>(workspace);
      if (count > 0)
        pyramid_backward_kernel<X, decltype(state), levels.value>
            <<<grid, kThreads, 0, stream>>>(p, states, g.dstates, static_cast<X*>(g.dx), chunks_of(p), parts);
      if (levels.value > 1) {
        const dim3 filters(blocks_for(p.channels, kChannels), static_cast<unsigned>((levels.value - 1) * kTaps));
        pyramid_sum_kernel<X><<<filters, dim3(kChannels, kLines), 0, stream>>>(parts, count, p.channels, g.dweights);
      }
      return cudaGetLastError();
    });
  });
}

}  // namespace strata::cuda
