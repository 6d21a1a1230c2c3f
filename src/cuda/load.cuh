// How the warpgroups of the sm_90 kernels (128 threads each) load rows into shared memory, as panels (wgmma.cuh), and
// store rows of results.
#pragma once

#include "cuda/hkt_scores.cuh"
#include "cuda/tile.cuh"
#include "cuda/wgmma.cuh"

namespace strata::cuda {

// The slice of a tile of rows with D channels that a thread loads: one chunk of every kSlots-th slot.
template <int D>
struct ThreadSlice {
  static constexpr int kChunks = D / 8, kSlots = D == 96 ? 8 : 128 / kChunks;  // 32, 16 or 8
  // With 96 channels, 96 of the 128 threads have a chunk.
  __device__ static bool is_idle() { return D == 96 && threadIdx.x >= 96; }
  __device__ static int chunk() { return static_cast<int>(threadIdx.x) % kChunks; }
  __device__ static int slot() { return static_cast<int>(threadIdx.x) / kChunks; }
  __device__ static int bytes(int channels) { return 2 * min(8, max(0, channels - chunk() * 8)); }
  // This thread's chunk of a row, which need not exist.
  template <class T>
  __device__ static const char* source(Rows<const T> from, int row, int channels) {
    return reinterpret_cast<const char*>(&from.at(row, chunk() * 8 < channels ? chunk() * 8 : 0));
  }
};

// Loads 64 slots; slot s gets row first + row(s), zeros from `limit` on. `row` must be additive: row(s + kSlots i) =
// row(s) + row(kSlots i), so that addresses advance by constants.
template <int D, class T, class Row>
__device__ inline void load_rows(uint32_t tile, Rows<const T> from, int first, int limit, int channels,
                                 const Row& row) {
  using S = ThreadSlice<D>;
  if (S::is_idle()) return;
  const int at = first + row(S::slot()), bytes = S::bytes(channels);
  const char* const source = S::source(from, at, channels);
  const uint32_t to = tile + panel_offset(64, S::slot(), S::chunk());
#pragma unroll
  for (int i = 0; i < 64 / S::kSlots; ++i) {
    const int further = row(S::kSlots * i);
    cp_async(to + i * S::kSlots * 128, source + 2 * further * from.stride, at + further < limit ? bytes : 0);
  }
}

// Loads 64 slots in which several levels are packed, from `base` on (hkt_scores.cuh), of tokens from `first` on.
template <int D, class T>
__device__ inline void load_packed(uint32_t tile, const ConstView* views, int levels, int base, int batch, int head,
                                   int first, int limit, int channels) {
  using S = ThreadSlice<D>;
  if (S::is_idle()) return;
#pragma unroll 1
  for (int slot = S::slot(); slot < 64; slot += S::kSlots) {
    const int level = base + packed_level(slot), row = (first >> level) + packed_row(slot);
    const bool there = level < levels && row < level_rows(limit, level);
    const Rows<const T> from = rows_of<const T>(views[there ? level : 0], batch, head);
    cp_async(tile + panel_offset(64, slot, S::chunk()), S::source(from, there ? row : 0, channels),
             there ? S::bytes(channels) : 0);
  }
}

// Loads consecutive rows, kRows at a time, in the order of slots: slot s of product tile n is row (kRows / 8) s + n. A
// thread keeps three numbers and advances them. The rows may be part of a tile of kTileRows rows, from kBegin on. Four
// rows stand in eight slots, each twice.
template <int D, int kRows, int kTileRows = kRows, int kBegin = 0>
struct RowStream {
  static constexpr int kSlots = ThreadSlice<D>::kSlots, kFilled = kRows < 8 ? 8 : kRows;
  const char* source;
  int stride;  // bytes
  int row;     // that this thread reads next

  // From row `first` on; the views have strides that fit (has_small_stride).
  template <class T>
  __device__ RowStream(Rows<const T> from, int first, int channels) {
    const int slot = ThreadSlice<D>::slot();
    row = first + slot % 8 * kRows / 8 + slot / 8;
    stride = static_cast<int>(from.stride) * 2;
    source = ThreadSlice<D>::source(from, row, channels);
  }
  // Loads the next kRows rows; those from `limit` on are zeros. channels: as before.
  __device__ void load(uint32_t tile, int limit, int channels) {
    const uint32_t to = tile + panel_offset(kTileRows, kBegin + ThreadSlice<D>::slot(), ThreadSlice<D>::chunk());
    const int bytes = ThreadSlice<D>::bytes(channels);
    if (!ThreadSlice<D>::is_idle() && (kFilled >= kSlots || ThreadSlice<D>::slot() < kFilled)) {
#pragma unroll
      for (int i = 0; i < (kFilled + kSlots - 1) / kSlots; ++i)
        cp_async(to + i * kSlots * 128, source + static_cast<int64_t>(i * (kSlots / 8)) * stride,
                 row + i * (kSlots / 8) < limit ? bytes : 0);
    }
    row += kRows;
    source += static_cast<int64_t>(kRows) * stride;
  }
};

// Loads one float, or a zero where there is none.
__device__ inline void load_number(uint32_t to, const float* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0));
}

// A warpgroup stores 64 rows of results through a tile it needs no more: first stage_rows, then store_rows.

// Writes this thread's accumulators, value(i) for i < D / 2, into its rows of the tile.
template <class T, int D, class Value>
__device__ inline void stage_rows(uint32_t tile, float factor, const Value& value) {
  // Chunks of a row lie where its first one does, but for three bits (panel_offset).
  const int lane = static_cast<int>(threadIdx.x) % 32, slot = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
  const uint32_t start = tile + panel_offset(64, slot, 0) + 4 * (lane % 4);
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    const uint32_t at = (start ^ (n % 8 << 4)) + n / 8 * 64 * 128;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(at + half * 8 * 128),
                   "r"(pack(value(4 * n + 2 * half) * factor, value(4 * n + 2 * half + 1) * factor, T()))
                   : "memory");
  }
}

// Writes the warp's 16 slots of the tile to global memory: slot s to row row(s), nowhere where that is negative.
template <int D, class T, class Row>
__device__ inline void store_rows(uint32_t tile, Rows<T> to, int channels, const Row& row) {
  constexpr int kChunks = D / 8;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int i = 0; i < 16 * kChunks / 32; ++i) {
    const int item = lane + 32 * i, slot = warp * 16 + item / kChunks, chunk = item % kChunks, at = row(slot);
    if (at < 0 || chunk * 8 >= channels) continue;
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(tile + panel_offset(64, slot, chunk))
                 : "memory");
    *reinterpret_cast<uint4*>(to.data + at * to.stride + chunk * 8) = x;
  }
}

}  // namespace strata::cuda
