// Streaming attention backward with mma.sync: the gradients of the entries, height by height from the top down
// (hsa_stream_entry_mma.cuh). Where their queries are split between blocks, the sums are added afterwards, in order.
#include "cuda/hsa_stream_entry_mma.cuh"

namespace strata::cuda {
namespace {

template <class T, int D, int kLevels, bool kDrop>
__global__ void __launch_bounds__(32 * kMostEntryWarps, D == 64 && kLevels == 1 ? 4 : 2)
    stream_mma_entry_kernel(const __grid_constant__ StreamArgs<T> a, int height, EntryWork work, int groups) {
  extern __shared__ __align__(1024) unsigned char memory[];
  int item = static_cast<int>(blockIdx.x);
  const int pass = kLevels == 1 ? 0 : item % work.passes;
  item /= kLevels == 1 ? 1 : work.passes;
  const int split = item % work.splits, group = item / work.splits % groups, stream = item / work.splits / groups;
  const int tile = work.shared ? group : group * work.warps + warp_of_thread();
  if (tile >= work.tiles) return;  // a warp alone: where warps share a tile there is one for every block
  const StreamKeys<T> keys(a, stream);
  if (tile * kTileRows >= keys.count(height)) return;  // of a packed sequence that is shorter
  EntryWarp<T, D, kLevels, kDrop> warp(keys, height, tile, pass, memory + warp_of_thread() * work.warp_memory);
  warp.add_split(split, work.splits, work.shared ? warp_of_thread() : 0, work.shared ? work.warps : 1);
  if (work.shared) {
    warp.collect(memory, work.warp_memory, work.warps);
    if (warp_of_thread() > 0) return;
  }
  if (work.later) {
    const int channels = a.p.levels * a.p.head_size + a.p.value_size + 1;
    warp.store_partial(a.partials +
                       ((int64_t{stream} * work.tiles + tile) * work.splits + split) * kTileRows * channels);
  } else {
    warp.store();
  }
}

// The splits of an entry, or of the entries of a coarse row, in order. With level 0 also dv and dkappa.
template <class T>
__global__ void stream_reduce_splits_kernel(const __grid_constant__ StreamArgs<T> a, int height, int level,
                                            EntryWork work, int rows) {
  const HsaStreamProblem& p = a.p;
  const int width = level == 0 ? p.head_size + p.value_size + 1 : p.head_size;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t stream = item / width / rows;
  if (stream >= p.batch * p.key_heads) return;
  const StreamKeys<T> keys(a, static_cast<int>(stream));
  const int row = static_cast<int>(item / width % rows), c = static_cast<int>(item % width);
  if ((height == 0 ? row << level : row) >= keys.count(height)) return;
  const int channels = p.levels * p.head_size + p.value_size + 1;
  const int at = c < p.head_size ? level * p.head_size + c : p.levels * p.head_size + c - p.head_size;
  const int first = height == 0 ? row << level : row;
  const int end = height == 0 ? min(keys.count(0), (row + 1) << level) : row + 1;
  float sum = 0;
  for (int n = first; n < end; ++n) {
    const int64_t tile = stream * work.tiles + n / kTileRows;
    for (int s = 0; s < work.splits; ++s)
      sum += a.partials[((tile * work.splits + s) * kTileRows + n % kTileRows) * channels + at];
    sum += keys.from_parent(height, n, level, c);
  }
  keys.store_gradient(height, row, level, c, sum);
}

template <class T, int D, int kLevels, bool kDrop>
cudaError_t entries(const StreamArgs<T>& a, int height, cudaStream_t stream) {
  const EntryWork work = entry_work(a.p, a.heights, height);
  const auto kernel = stream_mma_entry_kernel<T, D, kLevels, kDrop>;
  const int memory = work.warps * work.warp_memory, groups = work.groups();
  if (const cudaError_t e = allow_shared_memory(kernel, memory); e != cudaSuccess) return e;
  const int64_t keys = a.p.batch * a.p.key_heads, blocks = keys * groups * work.splits * work.passes;
  kernel<<<blocks_for(blocks, 1), 32 * work.warps, memory, stream>>>(a, height, work, groups);
  for (int level = 0; level < a.p.levels && work.later; ++level) {
    const int64_t rows = height == 0 ? hkt_level_tokens(a.p.tokens, level) : a.heights.nodes[height];
    const int64_t items = keys * rows * (a.p.head_size + (level == 0 ? a.p.value_size + 1 : 0));
    stream_reduce_splits_kernel<T>
        <<<blocks_for(items, 256), 256, 0, stream>>>(a, height, level, work, static_cast<int>(rows));
  }
  return cudaGetLastError();
}

}  // namespace

bool hsa_stream_entry_mma_fits(const HsaStreamProblem& p) { return entry_memory(p) <= shared_memory_per_block(); }

int64_t hsa_stream_partials(const HsaStreamProblem& p, const StreamHeights& heights) {
  int64_t most = 0;
  for (int height = 0; height < heights.count; ++height) {
    const EntryWork work = entry_work(p, heights, height);
    const int64_t channels = int64_t{p.levels} * p.head_size + p.value_size + 1;
    if (work.later) most = std::max(most, int64_t{work.tiles} * work.splits * kTileRows * channels);
  }
  return most;
}

template <class T, int D>
cudaError_t entries(const StreamArgs<T>& a, int height, cudaStream_t stream) {
  if (a.p.dropout.probability > 0)
    return a.p.levels == 1 ? entries<T, D, 1, true>(a, height, stream)
                           : entries<T, D, kMaxLevels, true>(a, height, stream);
  return a.p.levels == 1   ? entries<T, D, 1, false>(a, height, stream)
         : a.p.levels <= 3 ? entries<T, D, 3, false>(a, height, stream)
                           : entries<T, D, kMaxLevels, false>(a, height, stream);
}

template <class T>
cudaError_t hsa_stream_entry_gradient_mma(const StreamArgs<T>& a, cudaStream_t stream) {
  for (int height = a.heights.count - 1; height >= 0; --height) {
    const cudaError_t e = has_small_heads(a.p) ? entries<T, 64>(a, height, stream) : entries<T, 128>(a, height, stream);
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}
template cudaError_t hsa_stream_entry_gradient_mma(const StreamArgs<__nv_bfloat16>&, cudaStream_t);
template cudaError_t hsa_stream_entry_gradient_mma(const StreamArgs<__half>&, cudaStream_t);

}  // namespace strata::cuda
