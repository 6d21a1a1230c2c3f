// Layer norm (include/strata/cuda.h), bound by memory. A warp has a row, its channels in registers. The gradients of
// weight and bias are sums over all rows: each block sums its rows, and the parts are then added in order.
#include <algorithm>

#include "cuda/launch.cuh"
#include "cuda/layer_norm_kernels.h"

namespace strata::cuda {
namespace {

constexpr int kWarp = 32, kWarps = 8;
constexpr int64_t kMostBlocks = 512;
constexpr int kChannels = 32, kLines = 16;  // of a block that adds parts

__device__ float sum_of_warp(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// A lane has channels lane, lane + 32, ..
template <int kEach>
__global__ void __launch_bounds__(kWarp* kWarps)
    layer_norm_forward_kernel(const __grid_constant__ LayerNorm n, float* y) {
  const int lane = static_cast<int>(threadIdx.x);
  float weight[kEach], bias[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int c = lane + i * kWarp;
    weight[i] = c < n.channels ? n.weight[c] : 0.0f;
    bias[i] = c < n.channels ? n.bias[c] : 0.0f;
  }
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; row < n.rows; row += step) {
    const float* x = n.x + row * n.channels;
    float value[kEach], sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int c = lane + i * kWarp;
      value[i] = c < n.channels ? x[c] : 0.0f;
      sum += value[i];
    }
    const float mean = sum_of_warp(sum) / static_cast<float>(n.channels);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float from_mean = lane + i * kWarp < n.channels ? value[i] - mean : 0.0f;
      squares += from_mean * from_mean;
    }
    const float rstd = rsqrtf(sum_of_warp(squares) / static_cast<float>(n.channels) + n.epsilon);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int c = lane + i * kWarp;
      if (c < n.channels) y[row * n.channels + c] = (value[i] - mean) * rstd * weight[i] + bias[i];
    }
    if (lane == 0) {
      n.mean[row] = mean;
      n.rstd[row] = rstd;
    }
  }
}

// With h = (x - mean) rstd and g = weight dy:  dx = rstd (g - mean of g - h mean of g h);  dweight = sum dy h;
// dbias = sum dy. parts: (blocks, 2, channels).
template <int kEach>
__global__ void __launch_bounds__(kWarp* kWarps)
    layer_norm_backward_kernel(const __grid_constant__ LayerNorm n, const float* dy, float* dx, float* parts) {
  extern __shared__ float shared[];  // (kWarps, 2, channels)
  const int lane = static_cast<int>(threadIdx.x);
  float weight[kEach], dweight[kEach] = {}, dbias[kEach] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) weight[i] = lane + i * kWarp < n.channels ? n.weight[lane + i * kWarp] : 0.0f;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  const float inverse = 1.0f / static_cast<float>(n.channels);
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; row < n.rows; row += step) {
    const float mean = n.mean[row], rstd = n.rstd[row];
    float h[kEach], g[kEach], sum = 0, along = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int c = lane + i * kWarp;
      const bool real = c < n.channels;
      const float gradient = real ? dy[row * n.channels + c] : 0.0f;
      h[i] = real ? (n.x[row * n.channels + c] - mean) * rstd : 0.0f;
      g[i] = gradient * weight[i];
      dweight[i] += gradient * h[i];
      dbias[i] += gradient;
      sum += g[i];
      along += g[i] * h[i];
    }
    sum = sum_of_warp(sum) * inverse;
    along = sum_of_warp(along) * inverse;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int c = lane + i * kWarp;
      if (c < n.channels) dx[row * n.channels + c] = rstd * (g[i] - sum - h[i] * along);
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int c = lane + i * kWarp;
    if (c >= n.channels) break;
    shared[(threadIdx.y * 2) * n.channels + c] = dweight[i];
    shared[(threadIdx.y * 2 + 1) * n.channels + c] = dbias[i];
  }
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.y) * kWarp + lane; at < 2 * n.channels; at += kWarp * kWarps) {
    float sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += shared[warp * 2 * n.channels + at];
    parts[static_cast<int64_t>(blockIdx.x) * 2 * n.channels + at] = sum;
  }
}

__global__ void layer_norm_sum_kernel(const float* parts, int64_t count, int channels, float* dweight, float* dbias) {
  __shared__ float lines[kLines][kChannels];
  const int c = static_cast<int>(blockIdx.x) * kChannels + static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int64_t part = threadIdx.y; part < count && c < channels; part += kLines)
    sum += parts[(part * 2 + blockIdx.y) * channels + c];
  lines[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= channels) return;
  float all = 0;
  for (const auto& line : lines) all += line[threadIdx.x];
  (blockIdx.y == 0 ? dweight : dbias)[c] = all;
}

int64_t blocks_of(const LayerNorm& n) { return std::min<int64_t>((n.rows + kWarps - 1) / kWarps, kMostBlocks); }

// Calls run with the number of channels of a lane.
template <class Run>
cudaError_t with_each(int channels, const Run& run) {
  const int each = (channels + kWarp - 1) / kWarp;
  if (each <= 2) return run(std::integral_constant<int, 2>{});
  if (each <= 4) return run(std::integral_constant<int, 4>{});
  if (each <= 8) return run(std::integral_constant<int, 8>{});
  return run(std::integral_constant<int, 16>{});
}

}  // namespace

cudaError_t layer_norm_forward_simt(const LayerNorm& n, float* y, cudaStream_t stream) {
  return with_each(n.channels, [&](auto each) {
    const auto blocks = static_cast<unsigned>(std::min<int64_t>((n.rows + kWarps - 1) / kWarps, 8 * kMostBlocks));
    layer_norm_forward_kernel<each.value><<<blocks, dim3(kWarp, kWarps), 0, stream>>>(n, y);
    return cudaGetLastError();
  });
}

size_t layer_norm_backward_workspace_simt(const LayerNorm& n) {
  return sizeof(float) * 2 * static_cast<size_t>(std::max<int64_t>(1, blocks_of(n)) * n.channels);
}

cudaError_t layer_norm_backward_simt(const LayerNorm& n, const LayerNormGradients& g, void* workspace,
                                     cudaStream_t stream) {
  return with_each(n.channels, [&](auto each) {
    const int64_t count = blocks_of(n);
    float* parts = static_cast<float*>(workspace);
    const size_t shared = sizeof(float) * 2 * kWarps * static_cast<size_t>(n.channels);
    layer_norm_backward_kernel<each.value>
        <<<static_cast<unsigned>(count), dim3(kWarp, kWarps), shared, stream>>>(n, g.dy, g.dx, parts);
    const dim3 grid(blocks_for(n.channels, kChannels), 2);
    layer_norm_sum_kernel<<<grid, dim3(kChannels, kLines), 0, stream>>>(parts, count, n.channels, g.dweight, g.dbias);
    return cudaGetLastError();
  });
}

}  // namespace strata::cuda
