#include "bench/product_rate.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace strata::bench {

#if defined(__x86_64__)
namespace {

constexpr int kSums = 24;  // enough to hide the latency of a product

__attribute__((target("avx512f,avx512bf16"))) void vdpbf16ps(int64_t repeats) {
  __m512 sums[kSums];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  __m512i pairs = _mm512_set1_epi32(0x3f803f80);  // ones
  for (int64_t n = 0; n < repeats; ++n) {
    asm volatile("" : "+v"(pairs));  // or the loop would be folded
    const __m512bh ones = reinterpret_cast<__m512bh>(pairs);
#pragma GCC unroll 24
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, ones, ones);
  }
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));
}

constexpr int kTiles = 4;  // of sums

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

__attribute__((target("amx-tile,amx-bf16"))) void tdpbf16ps(int64_t repeats) {
  const TileConfig config;
  // GCC's intrinsic says that it reads only the first 8 bytes, so that the others might not be written before it.
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t n = 0; n < repeats; ++n) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

}  // namespace

double run_vdpbf16ps(int threads, int64_t repeats) {
#pragma omp parallel num_threads(threads)
  vdpbf16ps(repeats);
  return 2.0 * 16 * 2 * kSums * static_cast<double>(repeats) * threads;
}

double run_tdpbf16ps(int threads, int64_t repeats) {
#pragma omp parallel num_threads(threads)
  tdpbf16ps(repeats);
  return 2.0 * 16 * 16 * 32 * kTiles * static_cast<double>(repeats) * threads;
}

#else

double run_vdpbf16ps(int, int64_t) { return 0; }
double run_tdpbf16ps(int, int64_t) { return 0; }

#endif

}  // namespace strata::bench
