// Warp specialisation on Hopper (sm_90a): a producer warpgroup loads tiles into a ring of stages, consumer warpgroups
// multiply them. A stage has two mbarriers: `full` (its loads have arrived) and `empty` (its consumers are done).
#pragma once

#include <cstdint>

#include "cuda/mma.cuh"

namespace strata::cuda {

__device__ inline void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ inline void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Whether the phase of this parity is complete: test_wait asks once, try_wait may suspend the thread for a while.
#define STRATA_MBARRIER_WAIT(INSTRUCTION)                                       \
  __device__ inline bool mbarrier_##INSTRUCTION(uint32_t barrier, int parity) { \
    uint32_t done;                                                              \
    asm volatile("{\n.reg .pred p;\nmbarrier." #INSTRUCTION                     \
                 ".parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"    \
                 : "=r"(done)                                                   \
                 : "r"(barrier), "r"(parity)                                    \
                 : "memory");                                                   \
    return done != 0;                                                           \
  }
STRATA_MBARRIER_WAIT(test_wait)
STRATA_MBARRIER_WAIT(try_wait)
#undef STRATA_MBARRIER_WAIT
__device__ inline void mbarrier_wait(uint32_t barrier, int parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}
// Makes ordinary stores and copies to shared memory visible to wgmma, which reads through the async proxy.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The ring, as both sides see it. Step s uses stage s % kStages.
template <int kStages>
struct Pipeline {
  static constexpr int kBytes = 16 * kStages;
  uint32_t barriers;  // full and empty of each stage

  __device__ static int stage(int step) { return step % kStages; }
  __device__ uint32_t full(int step) const { return barriers + 16 * stage(step); }
  __device__ uint32_t empty(int step) const { return barriers + 16 * stage(step) + 8; }
  __device__ void init(int producer_arrivals, int consumer_arrivals) const {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(full(s), producer_arrivals);
      mbarrier_init(empty(s), consumer_arrivals);
    }
  }
  // For consumers.
  __device__ void wait(int step) const { mbarrier_wait(full(step), step / kStages & 1); }
  __device__ void release(int step) const { mbarrier_arrive(empty(step)); }
};

// The producer's side. A commit is deferred: a stage is announced when the loads of the next one were issued, so that
// those of two are in flight; at once where the next stage is still in use.
struct Producer {
  uint32_t pending = 0;  // the full barrier of the stage whose loads are in flight

  template <int kStages>
  __device__ void acquire(const Pipeline<kStages>& pipeline, int step) {
    const int round = step / kStages;
    if (round == 0) return;
    const uint32_t barrier = pipeline.empty(step);
    const int parity = (round - 1) & 1;
    if (mbarrier_test_wait(barrier, parity)) return;
    finish();
    mbarrier_wait(barrier, parity);
  }
  template <int kStages>
  __device__ void commit(const Pipeline<kStages>& pipeline, int step) {
    cp_async_commit();
    if (pending != 0) {
      cp_async_wait<1>();
      announce();
    }
    pending = pipeline.full(step);
  }
  __device__ void finish() {
    if (pending == 0) return;
    cp_async_wait<0>();
    announce();
    pending = 0;
  }

 private:
  __device__ void announce() const {
    fence_proxy_async();
    mbarrier_arrive(pending);
  }
};

// Moves registers from the producer's threads to the consumers'.
template <int kRegisters>
__device__ inline void raise_register_budget() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void lower_register_budget() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// The tile scheduler of persistent kernels: one work tile per block and wave. Every other wave is dealt out from the
// last block to the first, so that each block has its part of the long tiles and of the short ones.
__device__ inline int64_t scheduled_tile(int wave) {
  return static_cast<int64_t>(wave) * gridDim.x + (wave % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
}

// The same for lines of `tiles` work tiles each. Even ones are taken line by line. Uneven ones, the longest of a line
// first, where section > 0: in waves, a block takes a tile of one line and then the tile of the next line that has as
// much less than the mean as the first one had more, so that blocks stay side by side; with a block for each tile, the
// longest tiles of `section` lines come first.
struct LineTile {
  unsigned line, rank;
};
__device__ inline bool next_line_tile(int wave, unsigned tiles, unsigned lines, unsigned section, LineTile* at) {
  const unsigned block = blockIdx.x, blocks = gridDim.x, round = static_cast<unsigned>(wave);
  if (section == 0 || blocks >= tiles * lines) {
    const unsigned item = round * blocks + block;
    if (item >= tiles * lines) return false;
    const unsigned size = max(section, 1u), begin = item / (size * tiles) * size, width = min(size, lines - begin);
    *at = {begin + (item - begin * tiles) % width, (item - begin * tiles) / width};
    return true;
  }
  const unsigned pair = round / 2 * blocks + block, second = round % 2, rank = pair % tiles;
  *at = {pair / tiles * 2 + second, second == 0 ? rank : tiles - 1 - rank};
  return at->line < lines;
}

// The 128 threads of consumer warpgroup 1 or 2 have come here.
__device__ inline void warpgroup_sync(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory"); }

}  // namespace strata::cuda
