// The HKT backward that computes every score once: sums of dQ in fixed point. hkt_backward_once_sm90.cu has the kernel,
// hkt_backward_once_rows.cu what goes before and after it.
#pragma once

#include <cuda_runtime_api.h>

#include "base/hkt_rows.h"
#include "strata/hkt.h"

namespace strata::cuda {

// Query rows of all sequences are counted in parts of 256, of which every sequence has its own (hkt_rows.h). Sums of dQ
// lie in tiles of 64 rows x D channels, D 32 or 64, in the order of the products' accumulators: per head first those of
// level 0, then those of level 1, then those of all levels above, 16 (or, with more than three levels, 32) rows for
// each tile of 64 queries.
constexpr int kPartRows = 256, kPartTiles = kPartRows / 64;
struct OnceTiles {
  int fine, pairs, upper, per_upper;  // tiles of all sequences; query tiles that share one of the levels above 1
  __host__ __device__ int64_t all() const { return int64_t{fine} + pairs + upper; }
};
__host__ __device__ inline OnceTiles once_tiles(const HktProblem& p) {
  const int fine = static_cast<int>(tile_count(query_side(p), kPartRows)) * kPartTiles,
            per_upper = p.levels > 3 ? 2 : 4;
  return {fine, p.levels > 1 ? fine / 2 : 0, p.levels > 2 ? fine / per_upper : 0, per_upper};
}
// The first tile of level 0 of a sequence.
__host__ __device__ inline int once_first_tile(const HktProblem& p, int64_t sequence) {
  return static_cast<int>(first_tile(query_side(p), sequence, kPartRows)) * kPartTiles;
}
// Rows of all levels in one line: where those of a level begin.
__host__ __device__ inline int64_t once_level_begin(int fine_tiles, int level) {
  return int64_t{128} * fine_tiles - (int64_t{128} * fine_tiles >> level);
}
inline int once_channels(const HktProblem& p) { return p.head_size <= 32 && p.value_size <= 32 ? 32 : 64; }

constexpr int kOddKeys = 7;

struct OnceArguments {
  HktProblem p;
  HktOutputs o;
  HktGradients g;
  int* sums;            // (heads, tiles, 64 D)
  uint8_t* broken;      // (heads, tiles, 64): the row's sum is not finite
  unsigned* maxima;     // (batch, key_heads, 8), as bits: the longest value, the largest number of k at every level;
                        // at kOddKeys, whether some k is not finite
  float* lse2;          // lse in base 2, laid out as lse
  float* deltas;        // D, likewise
  float* scales;        // (heads, 128 fine tiles): 2^e of every row and level
  float* weight_parts;  // (heads, parts, kMmaLevels)
};

// The products: everything but dq and da, whose sums they leave in `sums`.
cudaError_t hkt_backward_once_products(const OnceArguments& a, cudaStream_t stream);

}  // namespace strata::cuda
