// AMX: eight tile registers of 16 rows of 64 bytes, and the product of two of them. A tile of sums is 16 x 16 float32,
// one of A 16 rows x 32 numbers, one of B 16 pairs of rows x 16 columns.
//
// The sizes are fixed in the only palette there is, so nothing is asked of CPUID. The instructions are written as
// assembly: the compiler's own functions for loads do not say that they read memory. With STRATA_EMULATE_TILES the
// same eight registers are arrays, for tests on any CPU.
#pragma once

#include "cpu/storage.h"

namespace strata::STRATA_ISA {

constexpr int64_t kTileRows = 16, kTileBytes = 64;

#ifndef STRATA_EMULATE_TILES

// A thread may use its tiles from construction to destruction. The state is given back in the end: a thread with tiles
// in use pays for them at every change of context.
class TileScope {
 public:
  TileScope() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int t = 0; t < 8; ++t) {
      config.row_bytes[t] = kTileBytes;
      config.rows[t] = kTileRows;
    }
    static_assert(sizeof config == 64);
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }
  ~TileScope() { asm volatile("tilerelease" : : : "memory"); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

struct Tiles {
  template <int kTile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  static void load(const void* from, int64_t row_bytes) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(from), "r"(row_bytes) : "memory");
  }
  template <int kTile>
  static void store(void* to, int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(to), "r"(row_bytes) : "memory");
  }
  template <int kSums, int kA, int kB>
  static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
  }
};

#else

struct TileScope {};

struct Tiles {
  template <int kTile>
  static void zero() {
    memset(bytes_[kTile], 0, sizeof bytes_[kTile]);
  }
  template <int kTile>
  static void load(const void* from, int64_t row_bytes) {
    for (int64_t r = 0; r < kTileRows; ++r)
      memcpy(bytes_[kTile][r], static_cast<const char*>(from) + r * row_bytes, kTileBytes);
  }
  template <int kTile>
  static void store(void* to, int64_t row_bytes) {
    for (int64_t r = 0; r < kTileRows; ++r)
      memcpy(static_cast<char*>(to) + r * row_bytes, bytes_[kTile][r], kTileBytes);
  }
  template <int kSums, int kA, int kB>
  static void multiply() {
    for (int64_t m = 0; m < kTileRows; ++m) {
      float sums[16];
      BFloat16 a[32];
      memcpy(sums, bytes_[kSums][m], kTileBytes);
      memcpy(a, bytes_[kA][m], kTileBytes);
      for (int64_t k = 0; k < 32; ++k) {
        BFloat16 b[32];
        memcpy(b, bytes_[kB][k / 2], kTileBytes);
        for (int64_t n = 0; n < 16; ++n) sums[n] += widen(a[k]) * widen(b[2 * n + k % 2]);
      }
      memcpy(bytes_[kSums][m], sums, kTileBytes);
    }
  }

  alignas(64) static inline thread_local char bytes_[8][kTileRows][kTileBytes];
};

#endif

}  // namespace strata::STRATA_ISA
