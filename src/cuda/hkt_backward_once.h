// The HKT backward that computes every score once: sums of dQ in fixed point. hkt_backward_once_sm90.cu has the kernel,
// hkt_backward_once_rows.cu what goes before and after it.
#pragma once

#include <cuda_runtime_api.h>

#include "strata/hkt.h"

namespace strata::cuda {

// Sums of dQ lie in tiles of 64 rows x 64 channels, in the order of the products' accumulators: per head first those of
// level 0, then those of level 1, then those of all levels above, 16 (or, with more than three levels, 32) rows for
// each tile of 64 queries.
struct OnceTiles {
  int fine, pairs, upper, per_upper;  // tiles; query tiles that share one of the levels above 1
  __host__ __device__ int all() const { return fine + pairs + upper; }
};
__host__ __device__ inline OnceTiles once_tiles(int64_t tokens, int levels) {
  const int fine = static_cast<int>((tokens + 63) / 64), per_upper = levels > 3 ? 2 : 4;
  return {fine, levels > 1 ? (fine + 1) / 2 : 0, levels > 2 ? (fine + per_upper - 1) / per_upper : 0, per_upper};
}
// Rows of all levels in one line, each padded to whole tiles: where those of a level begin.
__host__ __device__ inline int once_level_begin(int fine_tiles, int level) {
  return 128 * fine_tiles - (128 * fine_tiles >> level);
}

constexpr int kOddKeys = 7;

struct OnceArguments {
  HktProblem p;
  HktOutputs o;
  HktGradients g;
  int* sums;            // (batch, heads, tiles, 4096)
  uint8_t* broken;      // (batch, heads, tiles, 64): the row's sum is not finite
  unsigned* maxima;     // (batch, key_heads, 8), as bits: the longest value, the largest number of k at every level;
                        // at kOddKeys, whether some k is not finite
  float* numbers;       // (batch, heads, 2, tokens): lse in base 2, D
  float* scales;        // (batch, heads, 128 fine tiles): 2^e of every row and level
  float* weight_parts;  // (heads, batch, parts, kMmaLevels)
};

// The products: everything but dq and da, whose sums they leave in `sums`.
cudaError_t hkt_backward_once_products(const OnceArguments& a, cudaStream_t stream);

}  // namespace strata::cuda
