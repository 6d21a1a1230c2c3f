// Hopper's warpgroup products (sm_90a): 64 rows x N columns x 16 channels by 128 threads, operands in shared memory.
//
// The accumulators of a thread are those of mma.m16n8k16, tile after tile: warp w has rows 16 w .. 16 w + 15.
// Tiles lie in panels of 64 channels: rows of 128 bytes, whose eight chunks of 16 bytes are swapped by row, as
// tile_offset<64> has it.
#pragma once

#include "cuda/mma.cuh"

namespace strata::cuda {

__device__ inline uint32_t panel_offset(int rows, int row, int chunk) {
  return static_cast<uint32_t>((chunk / 8) * rows * 128 + row * 128 + (((chunk % 8) ^ (row & 7)) << 4));
}

// The descriptor of an operand in shared memory: 128-byte swizzle; groups of eight rows follow each other every `group`
// bytes, panels every `panel` bytes (which only operands read along their rows ask for).
__device__ inline uint64_t smem_descriptor(uint32_t address, uint32_t panel = 16, uint32_t group = 1024) {
  const uint32_t low = (address >> 4) + (panel >> 4 << 16), high = (uint32_t{1} << 30) + (group >> 4);
  return static_cast<uint64_t>(high) << 32 | low;
}

// The descriptor of what lies `bytes` further on, a multiple of 16.
__device__ inline uint64_t further(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & 0xffffffff00000000u) | (static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the newest kPending groups of products are done.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define STRATA_F8(c, i)                                                                                       \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), \
      "+f"(c[i + 7])
#define STRATA_F16(c, i) STRATA_F8(c, i), STRATA_F8(c, i + 8)
#define STRATA_F24(c, i) STRATA_F16(c, i), STRATA_F8(c, i + 16)
#define STRATA_F28(c, i) STRATA_F24(c, i), "+f"(c[i + 24]), "+f"(c[i + 25]), "+f"(c[i + 26]), "+f"(c[i + 27])
#define STRATA_F32(c, i) STRATA_F16(c, i), STRATA_F16(c, i + 16)
#define STRATA_F48(c, i) STRATA_F32(c, i), STRATA_F16(c, i + 32)
#define STRATA_F64(c, i) STRATA_F32(c, i), STRATA_F32(c, i + 32)
#define STRATA_R8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define STRATA_R16 STRATA_R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define STRATA_R24 STRATA_R16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define STRATA_R28 STRATA_R24 ", %24, %25, %26, %27"
#define STRATA_R32 STRATA_R16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define STRATA_R48 STRATA_R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define STRATA_R64 STRATA_R48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// acc (+)= A B^T: both from shared memory, channels along the rows of both.
#define STRATA_WGMMA_SS(N, COUNT, A, B, ADD, TYPE, NAME)                                              \
  __device__ inline void wgmma_ss(float(&c)[COUNT], uint64_t a, uint64_t b, int add, NAME) {          \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD                                            \
                 ", 0;\n"                                                                             \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" STRATA_R##COUNT \
                 "}, %" #A ", %" #B ", p, 1, 1, 0, 0;\n}"                                             \
                 : STRATA_F##COUNT(c, 0)                                                              \
                 : "l"(a), "l"(b), "r"(add));                                                         \
  }
STRATA_WGMMA_SS(16, 8, 8, 9, 10, "bf16", __nv_bfloat16)
STRATA_WGMMA_SS(32, 16, 16, 17, 18, "bf16", __nv_bfloat16)
STRATA_WGMMA_SS(48, 24, 24, 25, 26, "bf16", __nv_bfloat16)
STRATA_WGMMA_SS(56, 28, 28, 29, 30, "bf16", __nv_bfloat16)
STRATA_WGMMA_SS(64, 32, 32, 33, 34, "bf16", __nv_bfloat16)
STRATA_WGMMA_SS(128, 64, 64, 65, 66, "bf16", __nv_bfloat16)
STRATA_WGMMA_SS(16, 8, 8, 9, 10, "f16", __half)
STRATA_WGMMA_SS(32, 16, 16, 17, 18, "f16", __half)
STRATA_WGMMA_SS(48, 24, 24, 25, 26, "f16", __half)
STRATA_WGMMA_SS(56, 28, 28, 29, 30, "f16", __half)
STRATA_WGMMA_SS(64, 32, 32, 33, 34, "f16", __half)
STRATA_WGMMA_SS(128, 64, 64, 65, 66, "f16", __half)

// acc += A B: A in registers (as for mma.m16n8k16), B from shared memory, columns along its rows.
#define STRATA_WGMMA_RS(N, COUNT, A0, A1, A2, A3, B, TYPE, NAME)                                      \
  __device__ inline void wgmma_rs(float(&c)[COUNT], const uint32_t(&a)[4], uint64_t b, NAME) {        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" STRATA_R##COUNT \
                 "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", 1, 1, 1, 1;\n"                \
                 : STRATA_F##COUNT(c, 0)                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                               \
  }
STRATA_WGMMA_RS(32, 16, 16, 17, 18, 19, 20, "bf16", __nv_bfloat16)
STRATA_WGMMA_RS(64, 32, 32, 33, 34, 35, 36, "bf16", __nv_bfloat16)
STRATA_WGMMA_RS(96, 48, 48, 49, 50, 51, 52, "bf16", __nv_bfloat16)
STRATA_WGMMA_RS(128, 64, 64, 65, 66, 67, 68, "bf16", __nv_bfloat16)
STRATA_WGMMA_RS(32, 16, 16, 17, 18, 19, 20, "f16", __half)
STRATA_WGMMA_RS(64, 32, 32, 33, 34, 35, 36, "f16", __half)
STRATA_WGMMA_RS(96, 48, 48, 49, 50, 51, 52, "f16", __half)
STRATA_WGMMA_RS(128, 64, 64, 65, 66, 67, 68, "f16", __half)

// acc (+)= A B^T: A in registers, B from shared memory, channels along its rows.
#define STRATA_WGMMA_RS_ROWS(TYPE, NAME)                                                                  \
  __device__ inline void wgmma_rs_rows(float(&c)[32], const uint32_t(&a)[4], uint64_t b, int add, NAME) { \
    asm volatile(                                                                                         \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                                      \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" STRATA_R32                       \
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"                                                    \
        : STRATA_F32(c, 0)                                                                                \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                  \
  }
STRATA_WGMMA_RS_ROWS("bf16", __nv_bfloat16)
STRATA_WGMMA_RS_ROWS("f16", __half)
// acc (+)= A B, both from shared memory, columns along the rows of B. kColumns: those of A along its rows (A^T is
// stored).
#define STRATA_WGMMA_SS_COLUMNS(N, COUNT, A, B, ADD, COLUMNS, TYPE, NAME)                             \
  template <bool kColumns>                                                                            \
  __device__ inline void wgmma_ss_columns(float(&c)[COUNT], uint64_t a, uint64_t b, int add, NAME) {  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD                                            \
                 ", 0;\n"                                                                             \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" STRATA_R##COUNT \
                 "}, %" #A ", %" #B ", p, 1, 1, %" #COLUMNS ", 1;\n}"                                 \
                 : STRATA_F##COUNT(c, 0)                                                              \
                 : "l"(a), "l"(b), "r"(add), "n"(kColumns ? 1 : 0));                                  \
  }
STRATA_WGMMA_SS_COLUMNS(32, 16, 16, 17, 18, 19, "bf16", __nv_bfloat16)
STRATA_WGMMA_SS_COLUMNS(64, 32, 32, 33, 34, 35, "bf16", __nv_bfloat16)
STRATA_WGMMA_SS_COLUMNS(32, 16, 16, 17, 18, 19, "f16", __half)
STRATA_WGMMA_SS_COLUMNS(64, 32, 32, 33, 34, 35, "f16", __half)
// The first steps of such products: acc =.
#define STRATA_O8(c, i)                                                                                       \
  "=f"(c[i]), "=f"(c[i + 1]), "=f"(c[i + 2]), "=f"(c[i + 3]), "=f"(c[i + 4]), "=f"(c[i + 5]), "=f"(c[i + 6]), \
      "=f"(c[i + 7])
#define STRATA_O16(c) STRATA_O8(c, 0), STRATA_O8(c, 8)
#define STRATA_O24(c) STRATA_O16(c), STRATA_O8(c, 16)
#define STRATA_O32(c) STRATA_O24(c), STRATA_O8(c, 24)
#define STRATA_WGMMA_FIRST(N, COUNT, A0, A1, A2, A3, A4, TYPE, NAME)                                               \
  __device__ inline void wgmma_ss_first(float(&c)[COUNT], uint64_t a, uint64_t b, NAME) {                          \
    asm volatile(                                                                                                  \
        "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                                                 \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" STRATA_R##COUNT "}, %" #A0 ", %" #A1  \
                                                                                             ", p, 1, 1, 0, 0;\n}" \
        : STRATA_O##COUNT(c)                                                                                       \
        : "l"(a), "l"(b));                                                                                         \
  }                                                                                                                \
  __device__ inline void wgmma_rs_rows_first(float(&c)[COUNT], const uint32_t(&a)[4], uint64_t b, NAME) {          \
    asm volatile(                                                                                                  \
        "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                                                 \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" STRATA_R##COUNT                       \
        "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #A4 ", p, 1, 1, 0;\n}"                                    \
        : STRATA_O##COUNT(c)                                                                                       \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                     \
  }                                                                                                                \
  __device__ inline void wgmma_ss_columns_first(float(&c)[COUNT], uint64_t a, uint64_t b, NAME) {                  \
    asm volatile(                                                                                                  \
        "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                                                 \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" STRATA_R##COUNT "}, %" #A0 ", %" #A1  \
                                                                                             ", p, 1, 1, 1, 1;\n}" \
        : STRATA_O##COUNT(c)                                                                                       \
        : "l"(a), "l"(b));                                                                                         \
  }
STRATA_WGMMA_FIRST(32, 16, 16, 17, 18, 19, 20, "bf16", __nv_bfloat16)
STRATA_WGMMA_FIRST(32, 16, 16, 17, 18, 19, 20, "f16", __half)
STRATA_WGMMA_FIRST(48, 24, 24, 25, 26, 27, 28, "bf16", __nv_bfloat16)
STRATA_WGMMA_FIRST(48, 24, 24, 25, 26, 27, 28, "f16", __half)
STRATA_WGMMA_FIRST(64, 32, 32, 33, 34, 35, 36, "bf16", __nv_bfloat16)
STRATA_WGMMA_FIRST(64, 32, 32, 33, 34, 35, 36, "f16", __half)
#undef STRATA_WGMMA_FIRST
#undef STRATA_WGMMA_SS
#undef STRATA_WGMMA_RS
#undef STRATA_WGMMA_RS_ROWS
#undef STRATA_WGMMA_SS_COLUMNS

// acc (+)= 64 rows x 2 kCount rows, over D channels, both in panels; the last one may be filled to its half.
template <class T, int D, int kCount>
__device__ inline void wgmma_rows(float (&acc)[kCount], uint32_t left, uint32_t right, bool add) {
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) {
    const uint32_t channel = (kk % 4) * 32;
    wgmma_ss(acc, smem_descriptor(left + kk / 4 * 64 * 128 + channel),
             smem_descriptor(right + kk / 4 * kCount * 2 * 128 + channel), kk > 0 || add, T());
  }
}

// Stores four, or two, 8 x 8 matrices as ldmatrix loads them.
__device__ inline void stmatrix(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}
__device__ inline void stmatrix(uint32_t address, uint32_t r0, uint32_t r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r0), "r"(r1) : "memory");
}

}  // namespace strata::cuda
