// The rows that a new token adds to a pyramid (PyramidStep) and to a cache (HktAppend) on CUDA. Which of them begin is
// read from device memory, so that launches are the same for every token.
#include "cuda/causal_filter_kernels.h"
#include "cuda/hkt_decode.h"
#include "cuda/launch.cuh"
#include "cuda/storage.h"

namespace strata::cuda {
namespace {

constexpr int kThreads = 256;

// A ring of rows of one sequence.
template <class S>
struct ChannelRing {
  S* data;  // of one channel
  int64_t slots, stride;
  __device__ S& row(int64_t r) const { return data[r % slots * stride]; }
};

// sum over taps of W_r x_{row - r}; the newest row is at hand.
template <class S, class C>
__device__ S filtered(const PyramidStep& p, const void* weights, int64_t channel, const ChannelRing<S>& ring,
                      int64_t row, S newest) {
  const S* const weight = static_cast<const S*>(weights) + channel;
  C sum = static_cast<C>(weight[0]) * static_cast<C>(newest);
  for (int r = 1; r < p.taps && r <= row; ++r)
    sum += static_cast<C>(weight[r * p.channels]) * static_cast<C>(ring.row(row - r));
  return static_cast<S>(sum);
}

// A thread has one channel of one sequence.
template <class S>
__global__ void __launch_bounds__(kThreads) pyramid_step_kernel(const __grid_constant__ PyramidStep p) {
  using C = typename ComputeOf<S>::Type;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= p.batch * p.channels) return;
  const int64_t batch = at / p.channels, channel = at % p.channels;
  auto ring = [&](void* data, int64_t slots) {
    return ChannelRing<S>{static_cast<S*>(data) + batch * slots * p.channels + channel, slots, p.channels};
  };
  auto out = [&](int level) -> S& { return static_cast<S*>(p.out)[(batch * p.levels + level) * p.channels + channel]; };
  int64_t row = p.lengths[batch];
  S state = static_cast<const S*>(p.x)[at];
  if (p.filters[0] != nullptr) {
    const ChannelRing<S> inputs = ring(p.inputs, p.input_slots);
    inputs.row(row) = state;
    state = filtered<S, C>(p, p.filters[0], channel, inputs, row, state);
  }
  out(0) = state;
  int level = 1;
  for (; level < p.levels; ++level, row /= 2) {
    const ChannelRing<S> states = ring(p.states[level - 1], p.slots[level - 1]);
    states.row(row) = state;
    if (row % 2 != 0) break;  // no row of this level begins, nor of those above
    state = filtered<S, C>(p, p.filters[level], channel, states, row, state);
    out(level) = state;
  }
  for (; level < p.levels; ++level) out(level) = S(0.0f);
}

// A block has the rows of one array, level and sequence.
template <class S>
__global__ void __launch_bounds__(kThreads) append_kernel(const __grid_constant__ HktAppend a) {
  const int array = static_cast<int>(blockIdx.y) % 3, level = static_cast<int>(blockIdx.y) / 3;
  const int64_t batch = blockIdx.x, length = a.lengths[batch];
  const bool begins = length % (int64_t{1} << level) == 0;
  S* const current = static_cast<S*>(array == 0 ? a.current_q : array == 1 ? a.current_k : nullptr);
  if (length < 0 || (!begins && current == nullptr) || (array == 2 && (level > 0 || a.v.data == nullptr))) return;
  const ConstView& from = array == 0 ? a.q[level] : array == 1 ? a.k[level] : a.v;
  const View& to = array == 0 ? a.queries[level] : array == 1 ? a.keys[level] : a.values;
  const int64_t slots = array == 0 ? a.query_slots[level] : array == 1 ? a.key_slots[level] : a.value_slots;
  const int64_t slot = (length >> level) % slots, heads = array == 0 ? a.heads : a.key_heads;
  const int channels = array == 2 ? a.value_size : a.head_size;
  for (int at = static_cast<int>(threadIdx.x); at < heads * channels; at += kThreads) {
    const int h = at / channels, c = at % channels;
    S& there =
        static_cast<S*>(to.data)[batch * to.stride[0] + h * to.stride[1] + slot * to.stride[2] + c * to.stride[3]];
    if (begins)
      there = static_cast<const S*>(from.data)[batch * from.stride[0] + h * from.stride[1] + c * from.stride[3]];
    if (current != nullptr) current[((batch * heads + h) * a.levels + level) * channels + c] = there;
  }
}

__global__ void nothing_kernel() {}

}  // namespace

cudaError_t pyramid_step_simt(const PyramidStep& p, cudaStream_t stream) {
  return with_storage(p.dtype, [&](auto s) {
    pyramid_step_kernel<decltype(s)><<<blocks_for(p.batch * p.channels, kThreads), kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

cudaError_t hkt_append_simt(const HktAppend& a, cudaStream_t stream) {
  return with_storage(a.dtype, [&](auto s) {
    const dim3 grid(blocks_for(a.batch, 1), static_cast<unsigned>(3 * a.levels));
    append_kernel<decltype(s)><<<grid, kThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

cudaError_t nothing_simt(cudaStream_t stream) {
  nothing_kernel<<<1, 32, 0, stream>>>();
  return cudaGetLastError();
}

}  // namespace strata::cuda
