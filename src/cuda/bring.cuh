// How the third warpgroup of the Hopper kernels (128 threads) brings rows into shared memory, as panels (wgmma.cuh).
#pragma once

#include "cuda/tile.cuh"
#include "cuda/wgmma.cuh"

namespace strata::cuda {

// What every thread has of a tile of rows with D channels: one chunk of every kSlots-th slot.
template <int D>
struct Share {
  static constexpr int kChunks = D / 8, kSlots = 128 / kChunks;  // 16 or 8
  __device__ static int chunk() { return static_cast<int>(threadIdx.x) % kChunks; }
  __device__ static int slot() { return static_cast<int>(threadIdx.x) / kChunks; }
  __device__ static int bytes(int channels) { return 2 * min(8, max(0, channels - chunk() * 8)); }
  // This thread's chunk of a row, which need not exist.
  template <class T>
  __device__ static const char* source(Rows<const T> from, int row, int channels) {
    return reinterpret_cast<const char*>(&from.at(row, chunk() * 8 < channels ? chunk() * 8 : 0));
  }
};

// 64 slots; slot s gets row first + row(s), zeros from `limit` on. Of `row` it is asked that row(s + kSlots i) =
// row(s) + row(kSlots i), so that addresses are counted up by constants.
template <int D, class T, class Row>
__device__ inline void bring_rows(uint32_t tile, Rows<const T> from, int first, int limit, int channels,
                                  const Row& row) {
  using S = Share<D>;
  const int at = first + row(S::slot()), bytes = S::bytes(channels);
  const char* const source = S::source(from, at, channels);
  const uint32_t to = tile + panel_offset(64, S::slot(), S::chunk());
#pragma unroll
  for (int i = 0; i < 64 / S::kSlots; ++i) {
    const int further = row(S::kSlots * i);
    copy_async(to + i * S::kSlots * 128, source + 2 * further * from.stride, at + further < limit ? bytes : 0);
  }
}

// kRows rows at a time, in the order of slots: slot s of product tile n is row (kRows / 8) s + n. A thread has one
// chunk of every 128 / (D / 8)-th slot, so that it only counts up; it keeps three numbers. The rows may be part of a
// tile, of kTileRows rows in all, from kBegin on.
template <int D, int kRows, int kTileRows = kRows, int kBegin = 0>
struct SlotStream {
  static constexpr int kSlots = Share<D>::kSlots;
  const char* source;
  int stride;  // bytes
  int row;     // that this thread reads next

  // From row `first` on; the views were checked to have strides that fit (hkt_fits_hopper).
  template <class T>
  __device__ SlotStream(Rows<const T> from, int first, int channels) {
    const int slot = Share<D>::slot();
    row = first + slot % 8 * (kRows / 8) + slot / 8;
    stride = static_cast<int>(from.stride) * 2;
    source = Share<D>::source(from, row, channels);
  }
  // Brings the next kRows rows; those from `limit` on are zeros. channels: as before.
  __device__ void bring(uint32_t tile, int limit, int channels) {
    const uint32_t to = tile + panel_offset(kTileRows, kBegin + Share<D>::slot(), Share<D>::chunk());
    const int bytes = Share<D>::bytes(channels);
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

// Says of every tile that it is here, once its copies have arrived. While there is no room for the next one, that is at
// once; otherwise when the next one was asked for, so that the copies of two are under way.
struct Announcer {
  uint32_t asked_for = 0;  // its barrier

  __device__ void ask(uint32_t barrier) {
    commit_copies();
    if (asked_for != 0) {
      wait_copies<1>();
      announce();
    }
    asked_for = barrier;
  }
  __device__ void finish() {
    if (asked_for == 0) return;
    wait_copies<0>();
    announce();
    asked_for = 0;
  }
  __device__ void wait_for_room(uint32_t barrier, int parity) {
    if (barrier_is_over(barrier, parity)) return;
    finish();
    barrier_wait(barrier, parity);
  }

 private:
  __device__ void announce() const {
    fence_shared();
    barrier_arrive(asked_for);
  }
};

// ---- and how a warpgroup stores 64 rows of results: through the tile `tile`, which it needs no more.

// This thread's accumulators, value(i) for i < D / 2, into its rows of the tile.
template <class T, int D, class Value>
__device__ inline void put_rows(uint32_t tile, float factor, const Value& value) {
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

// The warp's 16 slots of the tile to global memory: slot s to row row(s), nowhere where that is negative.
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

// The 128 threads of a group (1 or 2) have come here.
__device__ inline void group_sync(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory"); }

}  // namespace strata::cuda
