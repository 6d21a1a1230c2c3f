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

// How a product finds its operand: 128-byte swizzle; groups of eight rows follow each other every 1024 bytes, panels
// every `panel` bytes (which only operands read along their rows ask for).
__device__ inline uint64_t operand(uint32_t address, uint32_t panel = 16) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | (static_cast<uint64_t>(panel >> 4) << 16) |
         ((address & 0x3ffff) >> 4);
}

__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the newest kPending groups of products are done.
template <int kPending>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define STRATA_F8(c, i)                                                                                       \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), \
      "+f"(c[i + 7])
#define STRATA_F16(c, i) STRATA_F8(c, i), STRATA_F8(c, i + 8)
#define STRATA_F24(c, i) STRATA_F16(c, i), STRATA_F8(c, i + 16)
#define STRATA_F32(c, i) STRATA_F16(c, i), STRATA_F16(c, i + 16)
#define STRATA_F64(c, i) STRATA_F32(c, i), STRATA_F32(c, i + 32)
#define STRATA_R8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define STRATA_R16 STRATA_R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define STRATA_R24 STRATA_R16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define STRATA_R32 STRATA_R16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define STRATA_R64                                                                                         \
  STRATA_R32                                                                                               \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// acc (+)= A B^T: both from shared memory, channels along the rows of both.
#define STRATA_SHARED_PRODUCT(N, COUNT, A, B, ADD, TYPE, NAME)                                        \
  __device__ inline void shared_product(float(&c)[COUNT], uint64_t a, uint64_t b, int add, NAME) {    \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD                                            \
                 ", 0;\n"                                                                             \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" STRATA_R##COUNT \
                 "}, %" #A ", %" #B ", p, 1, 1, 0, 0;\n}"                                             \
                 : STRATA_F##COUNT(c, 0)                                                              \
                 : "l"(a), "l"(b), "r"(add));                                                         \
  }
STRATA_SHARED_PRODUCT(16, 8, 8, 9, 10, "bf16", __nv_bfloat16)
STRATA_SHARED_PRODUCT(32, 16, 16, 17, 18, "bf16", __nv_bfloat16)
STRATA_SHARED_PRODUCT(48, 24, 24, 25, 26, "bf16", __nv_bfloat16)
STRATA_SHARED_PRODUCT(64, 32, 32, 33, 34, "bf16", __nv_bfloat16)
STRATA_SHARED_PRODUCT(128, 64, 64, 65, 66, "bf16", __nv_bfloat16)
STRATA_SHARED_PRODUCT(16, 8, 8, 9, 10, "f16", __half)
STRATA_SHARED_PRODUCT(32, 16, 16, 17, 18, "f16", __half)
STRATA_SHARED_PRODUCT(48, 24, 24, 25, 26, "f16", __half)
STRATA_SHARED_PRODUCT(64, 32, 32, 33, 34, "f16", __half)
STRATA_SHARED_PRODUCT(128, 64, 64, 65, 66, "f16", __half)

// acc += A B: A in registers (as for mma.m16n8k16), B from shared memory, columns along its rows.
#define STRATA_REGISTER_PRODUCT(N, COUNT, A0, A1, A2, A3, B, TYPE, NAME)                               \
  __device__ inline void register_product(float(&c)[COUNT], const uint32_t(&a)[4], uint64_t b, NAME) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" STRATA_R##COUNT  \
                 "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", 1, 1, 1, 1;\n"                 \
                 : STRATA_F##COUNT(c, 0)                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                \
  }
STRATA_REGISTER_PRODUCT(64, 32, 32, 33, 34, 35, 36, "bf16", __nv_bfloat16)
STRATA_REGISTER_PRODUCT(128, 64, 64, 65, 66, 67, 68, "bf16", __nv_bfloat16)
STRATA_REGISTER_PRODUCT(64, 32, 32, 33, 34, 35, 36, "f16", __half)
STRATA_REGISTER_PRODUCT(128, 64, 64, 65, 66, 67, 68, "f16", __half)
#undef STRATA_SHARED_PRODUCT
#undef STRATA_REGISTER_PRODUCT

// ---- between warps that bring tiles and warps that use them

__device__ inline void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Whether the phase of this parity is over: asked once, or waited for.
#define STRATA_BARRIER_IS_OVER(INSTRUCTION, NAME)                                                                      \
  __device__ inline bool NAME(uint32_t barrier, int parity) {                                                          \
    uint32_t done;                                                                                                     \
    asm volatile("{\n.reg .pred p;\nmbarrier." INSTRUCTION ".parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" \
                 : "=r"(done)                                                                                          \
                 : "r"(barrier), "r"(parity)                                                                           \
                 : "memory");                                                                                          \
    return done != 0;                                                                                                  \
  }
STRATA_BARRIER_IS_OVER("test_wait", barrier_is_over)
STRATA_BARRIER_IS_OVER("try_wait", barrier_is_over_soon)
#undef STRATA_BARRIER_IS_OVER
__device__ inline void barrier_wait(uint32_t barrier, int parity) {
  while (!barrier_is_over_soon(barrier, parity)) {
  }
}
// What was written to shared memory by ordinary stores and copies is seen by the products.
__device__ inline void fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int kRegisters>
__device__ inline void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace strata::cuda
