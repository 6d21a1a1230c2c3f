// How the third warpgroup of the Hopper kernels (128 threads) brings rows into shared memory, as panels (wgmma.cuh).
#pragma once

#include "cuda/tile.cuh"
#include "cuda/wgmma.cuh"

namespace strata::cuda {

// Slot s of the tile gets row row(s); slots whose row is negative are left alone.
template <int D, class T, class Row>
__device__ inline void bring_rows(uint32_t tile, int rows, Rows<const T> from, int limit, int channels,
                                  const Row& row) {
  constexpr int kChunks = D / 8;
  for (int item = static_cast<int>(threadIdx.x); item < rows * kChunks; item += 128) {
    const int slot = item / kChunks, chunk = item % kChunks, at = row(slot);
    if (at < 0) continue;
    const int bytes = at < limit ? 2 * min(8, max(0, channels - chunk * 8)) : 0;
    copy_async(tile + panel_offset(rows, slot, chunk), bytes > 0 ? &from.at(at, chunk * 8) : from.data, bytes);
  }
}

// kRows rows at a time, in the order of slots: slot s of product tile n is row (kRows / 8) s + n. A thread has one
// chunk of every 128 / (D / 8)-th slot, so that it only counts up; it keeps three numbers. The rows may be part of a
// tile, of kTileRows rows in all, from kBegin on.
template <int D, int kRows, int kTileRows = kRows, int kBegin = 0>
struct SlotStream {
  static constexpr int kChunks = D / 8, kSlots = 128 / kChunks;  // slots side by side: 16 or 8
  const char* source;
  int stride;  // bytes
  int row;     // that this thread reads next

  // From row `first` on; the views were checked to have strides that fit (hkt_fits_hopper).
  template <class T>
  __device__ SlotStream(Rows<const T> from, int first, int channels) {
    const int thread = static_cast<int>(threadIdx.x), chunk = thread % kChunks, slot = thread / kChunks;
    row = first + slot % 8 * (kRows / 8) + slot / 8;
    stride = static_cast<int>(from.stride) * 2;
    source = reinterpret_cast<const char*>(&from.at(row, chunk * 8 < channels ? chunk * 8 : 0));
  }
  // Brings the next kRows rows; those from `limit` on are zeros. channels: as before.
  __device__ void bring(uint32_t tile, int limit, int channels) {
    const int thread = static_cast<int>(threadIdx.x), chunk = thread % kChunks;
    const uint32_t to = tile + panel_offset(kTileRows, kBegin + thread / kChunks, chunk);
    const int bytes = 2 * min(8, max(0, channels - chunk * 8));
#pragma unroll
    for (int i = 0; i < (kRows + kSlots - 1) / kSlots; ++i)
      copy_async(to + i * kSlots * 128, source + static_cast<int64_t>(i * (kSlots / 8)) * stride,
                 row + i * (kSlots / 8) < limit ? bytes : 0);
    row += kRows;
    source += static_cast<int64_t>(kRows) * stride;
  }
};

// Whether the rows of a view can be counted up in 32 bits.
inline bool is_streamable(const ConstView& view) { return view.stride[2] >= 0 && view.stride[2] < (1 << 22); }

// One float per thread below `count`, zero from `limit` on.
__device__ inline void bring_number(uint32_t to, const float* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0));
}

}  // namespace strata::cuda
