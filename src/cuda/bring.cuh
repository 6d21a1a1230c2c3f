// How the third warpgroup of the Hopper kernels (128 threads) brings rows into shared memory, as panels (wgmma.cuh).
#pragma once

#include "cuda/tile.cuh"
#include "cuda/wgmma.cuh"

namespace strata::cuda {

// Slot s of the tile gets row row(s); slots whose row is negative are left alone.
template <int D, class T, class Row>
__device__ inline void bring_rows(uint32_t tile, int rows, Rows<const T> from, int limit, int channels, const Row& row) {
  constexpr int kChunks = D / 8;
  for (int item = static_cast<int>(threadIdx.x); item < rows * kChunks; item += 128) {
    const int slot = item / kChunks, chunk = item % kChunks, at = row(slot);
    if (at < 0) continue;
    const int bytes = at < limit ? 2 * min(8, max(0, channels - chunk * 8)) : 0;
    copy_async(tile + panel_offset(rows, slot, chunk), bytes > 0 ? &from.at(at, chunk * 8) : from.data, bytes);
  }
}

// The kRows rows from `first` on, in the order of slots: slot s of product tile n is row (kRows / 8) s + n. A thread
// has one chunk of every 128 / (D / 8)-th slot, so that it only counts up. The rows may be part of a tile: of kTileRows
// rows in all, from kBegin on.
template <int D, int kRows, int kTileRows = kRows, int kBegin = 0, class T>
__device__ inline void bring_slots(uint32_t tile, Rows<const T> from, int first, int limit, int channels) {
  constexpr int kChunks = D / 8, kSlots = 128 / kChunks;  // slots side by side: 16 or 8
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % kChunks, slot = thread / kChunks;
  const int bytes = 2 * min(8, max(0, channels - chunk * 8));
  int row = first + slot % 8 * (kRows / 8) + slot / 8;
  const T* source = &from.at(row, bytes > 0 ? chunk * 8 : 0);
  const int64_t step = (kSlots / 8) * from.stride;
  uint32_t to = tile + panel_offset(kTileRows, kBegin + slot, chunk);
#pragma unroll
  for (int i = 0; i < (kRows + kSlots - 1) / kSlots; ++i) {
    const bool there = row < limit;
    copy_async(to, there ? source : from.data, there ? bytes : 0);
    row += kSlots / 8;
    source += step;
    to += kSlots * 128;
  }
}

// One float per thread below `count`, zero from `limit` on.
__device__ inline void bring_number(uint32_t to, const float* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0));
}

}  // namespace strata::cuda
