// The depthwise causal filter (include/strata/pyramid.h), bound by memory. A thread has one channel of one row. The
// gradient of the weights is a sum over all rows: blocks sum parts of it, which are then added in order.
#include <algorithm>

#include "cuda/causal_filter_kernels.h"
#include "cuda/launch.cuh"
#include "cuda/storage.h"

namespace strata::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChannels = 32, kLines = 8;  // of a block that sums dweight: channels, and rows side by side
constexpr int kTaps = 4;                   // that a thread sums at a time
constexpr int64_t kMostParts = 128, kPartRows = 256;

template <class S>
struct Filter {
  using C = typename ComputeOf<S>::Type;
  CausalFilter f;
  int64_t rows;

  explicit Filter(const CausalFilter& filter) : f(filter), rows(filtered_tokens(filter.tokens, filter.stride)) {}
  __device__ C x(int64_t b, int64_t t, int64_t c) const {
    return static_cast<C>(static_cast<const S*>(f.x)[(b * f.tokens + t) * f.channels + c]);
  }
  __device__ C weight(int64_t r, int64_t c) const {
    return static_cast<C>(static_cast<const S*>(f.weight)[r * f.channels + c]);
  }
};

template <class S>
__global__ void filter_forward_kernel(const __grid_constant__ Filter<S> filter, S* y) {
  using C = typename ComputeOf<S>::Type;
  const CausalFilter& f = filter.f;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= f.batch * filter.rows * f.channels) return;
  const int64_t c = at % f.channels, m = at / f.channels % filter.rows, b = at / f.channels / filter.rows;
  C sum = 0;
  for (int r = 0; r < f.taps && r <= f.stride * m; ++r) sum += filter.weight(r, c) * filter.x(b, f.stride * m - r, c);
  y[at] = static_cast<S>(sum);
}

// dx_t = sum over r with t + r = stride m of W_r dy_m.
template <class S>
__global__ void filter_input_gradient_kernel(const __grid_constant__ Filter<S> filter, const S* dy, S* dx) {
  using C = typename ComputeOf<S>::Type;
  const CausalFilter& f = filter.f;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= f.batch * f.tokens * f.channels) return;
  const int64_t c = at % f.channels, t = at / f.channels % f.tokens, b = at / f.channels / f.tokens;
  C sum = 0;
  for (int r = static_cast<int>(t % f.stride); r < f.taps; r += f.stride) {
    const int64_t m = (t + r) / f.stride;
    if (m < filter.rows) sum += filter.weight(r, c) * static_cast<C>(dy[(b * filter.rows + m) * f.channels + c]);
  }
  dx[at] = static_cast<S>(sum);
}

// parts: (parts, taps, channels). A block has kChannels channels, kTaps taps and one part of the rows.
template <class S>
__global__ void filter_weight_parts_kernel(const __grid_constant__ Filter<S> filter, const S* dy,
                                           typename ComputeOf<S>::Type* parts) {
  using C = typename ComputeOf<S>::Type;
  __shared__ C sums[kLines][kTaps][kChannels];
  const CausalFilter& f = filter.f;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kChannels + threadIdx.x, total = f.batch * filter.rows;
  const int first_tap = static_cast<int>(blockIdx.z) * kTaps;
  const int64_t begin = total * blockIdx.y / gridDim.y, end = total * (blockIdx.y + 1) / gridDim.y;
  C sum[kTaps] = {};
  for (int64_t row = begin + threadIdx.y; row < end && c < f.channels; row += kLines) {
    const int64_t b = row / filter.rows, newest = f.stride * (row % filter.rows);
    const C gradient = static_cast<C>(dy[row * f.channels + c]);
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      const int64_t t = newest - first_tap - i;
      if (first_tap + i < f.taps && t >= 0) sum[i] += gradient * filter.x(b, t, c);
    }
  }
#pragma unroll
  for (int i = 0; i < kTaps; ++i) sums[threadIdx.y][i][threadIdx.x] = sum[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y); i < kTaps && first_tap + i < f.taps && c < f.channels; i += kLines) {
    C all = 0;
    for (const auto& line : sums) all += line[i][threadIdx.x];
    parts[(static_cast<int64_t>(blockIdx.y) * f.taps + first_tap + i) * f.channels + c] = all;
  }
}

template <class S>
__global__ void filter_weight_sum_kernel(const typename ComputeOf<S>::Type* parts, int64_t count, int64_t size,
                                         S* dweight) {
  using C = typename ComputeOf<S>::Type;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= size) return;
  C sum = 0;
  for (int64_t part = 0; part < count; ++part) sum += parts[part * size + at];
  dweight[at] = static_cast<S>(sum);
}

int64_t parts_of(const CausalFilter& f) {
  const int64_t total = f.batch * filtered_tokens(f.tokens, f.stride);
  return std::clamp<int64_t>((total + kPartRows - 1) / kPartRows, 1, kMostParts);
}

template <class S>
cudaError_t backward(const CausalFilter& f, const CausalFilterGradients& g, void* workspace, cudaStream_t stream) {
  using C = typename ComputeOf<S>::Type;
  const Filter<S> filter(f);
  const S* dy = static_cast<const S*>(g.dy);
  const int64_t inputs = f.batch * f.tokens * f.channels, parts = parts_of(f);
  if (inputs > 0)
    filter_input_gradient_kernel<S>
        <<<blocks_for(inputs, kThreads), kThreads, 0, stream>>>(filter, dy, static_cast<S*>(g.dx));
  const dim3 grid(blocks_for(f.channels, kChannels), static_cast<unsigned>(parts), blocks_for(f.taps, kTaps));
  filter_weight_parts_kernel<S><<<grid, dim3(kChannels, kLines), 0, stream>>>(filter, dy, static_cast<C*>(workspace));
  const int64_t size = f.taps * f.channels;
  filter_weight_sum_kernel<S><<<blocks_for(size, kThreads), kThreads, 0, stream>>>(
      static_cast<const C*>(workspace), parts, size, static_cast<S*>(g.dweight));
  return cudaGetLastError();
}

}  // namespace

cudaError_t causal_filter_forward_simt(const CausalFilter& f, void* y, cudaStream_t stream) {
  return with_storage(f.dtype, [&](auto storage) {
    using S = decltype(storage);
    const Filter<S> filter(f);
    filter_forward_kernel<S>
        <<<blocks_for(f.batch * filter.rows * f.channels, kThreads), kThreads, 0, stream>>>(filter, static_cast<S*>(y));
    return cudaGetLastError();
  });
}

size_t causal_filter_backward_workspace_simt(const CausalFilter& f) {
  return compute_size(f.dtype) * static_cast<size_t>(parts_of(f) * f.taps * f.channels);
}

cudaError_t causal_filter_backward_simt(const CausalFilter& f, const CausalFilterGradients& g, void* workspace,
                                        cudaStream_t stream) {
  return with_storage(f.dtype, [&](auto storage) { return backward<decltype(storage)>(f, g, workspace, stream); });
}

}  // namespace strata::cuda
