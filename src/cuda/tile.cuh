// Tiles of rows in shared memory. A row of D numbers is D / 8 chunks of 16 bytes; chunk c of row r lies at place
// c ^ (r & 7), so that the eight rows of one matrix load fall into different banks.
#pragma once

#include "cuda/mma.cuh"
#include "strata/tensor.h"

namespace strata::cuda {

template <int D>
__device__ inline uint32_t tile_offset(int row, int chunk) {
  return static_cast<uint32_t>(row * (D * 2) + ((chunk ^ (row & 7)) << 4));
}

// Rows of one sequence and head in global memory.
template <class T>
struct Rows {
  T* data;
  int64_t stride, channel_stride;
  __device__ T& at(int64_t row, int64_t channel) const { return data[row * stride + channel * channel_stride]; }
};

template <class T, class AnyView>
__device__ inline Rows<T> rows_from(const AnyView& view, int64_t begin, int64_t head) {
  return {static_cast<T*>(const_cast<void*>(static_cast<const void*>(view.data))) + begin + head * view.stride[1],
          view.stride[2], view.stride[3]};
}
template <class T, class AnyView>
__device__ inline Rows<T> rows_of(const AnyView& view, int64_t batch, int64_t head) {
  const int64_t begin = view.begins != nullptr ? view.begins[batch] * view.stride[2] : batch * view.stride[0];
  return rows_from<T>(view, begin, head);
}
// The same where views are never packed.
template <class T, class AnyView>
__device__ inline Rows<T> padded_rows_of(const AnyView& view, int64_t batch, int64_t head) {
  return rows_from<T>(view, batch * view.stride[0], head);
}

// Loads `count` rows from row `first` on, as far as they are below `limit`, and zeros for the others and for channels
// from `channels` on. Row r of them becomes row slot(r) of the tile. `aligned`: 16 bytes at a time, asynchronously.
template <int D, int kThreads, class T, class Slot>
__device__ inline void load_tile(uint32_t tile, Rows<const T> rows, int first, int count, int limit, int channels,
                                 bool aligned, const Slot& slot) {
  constexpr int kChunks = D / 8;
  for (int item = static_cast<int>(threadIdx.x); item < count * kChunks; item += kThreads) {
    const int row = item / kChunks, chunk = item % kChunks;
    const int from = first + row;
    const uint32_t to = tile + tile_offset<D>(slot(row), chunk);
    const int here = from < limit ? min(8, max(0, channels - chunk * 8)) : 0;
    if (aligned) {
      cp_async(to, here > 0 ? &rows.at(from, chunk * 8) : rows.data, here * 2);
      continue;
    }
    uint32_t packed[4] = {0, 0, 0, 0};
    for (int c = 0; c < here; ++c) {
      const uint16_t bits = reinterpret_cast<const uint16_t&>(rows.at(from, chunk * 8 + c));
      packed[c / 2] |= static_cast<uint32_t>(bits) << (16 * (c % 2));
    }
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(packed[0]), "r"(packed[1]), "r"(packed[2]),
                 "r"(packed[3]));
  }
}

}  // namespace strata::cuda
