// What bounds a kernel: the FLOPs it must do over the rate of a large matrix product, and the bytes it must move over
// the rate of a copy. Both rates are measured in the same run.
#pragma once

#include <algorithm>
#include <cstdint>

#include "strata/tree.h"

namespace strata::bench {

// A timed kernel, and the least it has to do. No seconds: nothing is known.
struct Work {
  double seconds = 0, flops = 0, bytes = 0;
};

struct Ceilings {
  double flops = 0, bytes = 0;  // per second; bytes read and bytes written both count
  double floor(const Work& work) const { return std::max(work.flops / flops, work.bytes / bytes); }  // seconds
};

// float32 on the CPU; bfloat16 on a GPU.
Ceilings cpu_ceilings(int threads, int rounds);
Ceilings cuda_ceilings(int rounds);

// An attention with q and k of several levels. products: pairs of rows that meet, of all levels, per head and sequence;
// values: pairs whose weights meet values.
struct AttentionWork {
  double batch, heads, tokens, levels, head_size, products, values, number_bytes;

  // Forward: scores and values. Backward: scores again, the gradients of weights and values, and those of q and k.
  Work work(double seconds, bool backward) const {
    const double pairs = products + values + (backward ? 3 * products + 2 * values : 0.0);
    double rows = 0;  // of q, of all levels
    for (double l = 0, at = tokens; l < levels; ++l, at /= 2) rows += at;
    // q, k, v and the output; then q, k, v, the output and its gradient, and the gradients of q, k and v.
    const double numbers = 2 * rows + 2 * tokens + (backward ? 4 * rows + 4 * tokens : 0.0);
    const double all = batch * heads * head_size;
    return {seconds, 2 * all * pairs, all * numbers * number_bytes};
  }
};

// HKT's, on `batch` sequences.
AttentionWork hkt_work(int64_t batch, int64_t heads, int64_t tokens, int64_t levels, int64_t head_size, bool causal,
                       int number_bytes);
// On a tree, one sequence.
AttentionWork tree_work(const Tree& tree, int64_t heads, int64_t levels, int64_t head_size, int number_bytes);
// The streaming form, one sequence. Of several levels, the products of the first alone count.
AttentionWork stream_work(int64_t tokens, int branching, int near, int64_t heads, int64_t levels, int64_t head_size,
                          int number_bytes);

}  // namespace strata::bench
