// The time of a decoding step of streaming attention.
#pragma once

#include "bench/measure.h"
#include "strata/hsa_stream.h"

namespace strata::bench {

// Mean microseconds of a step over `count` tokens from `first` on: 8 heads of 64, branching 16, one level.
inline double decode_microseconds(int64_t first, int64_t count, int near = 1) {
  constexpr int64_t kHeads = 8, kSize = 64, kCapacity = 8;
  constexpr int kBranching = 16;
  const int64_t ring = int64_t{near} * kBranching;
  const torch::Tensor q = torch::randn({kHeads, kSize}), k = torch::randn({kHeads, kSize}),
                      v = torch::randn({kHeads, kSize});
  torch::Tensor keys = torch::randn({kHeads, kCapacity, ring, kSize}), values = torch::randn_like(keys);
  torch::Tensor kappas = torch::zeros({kHeads, kCapacity, ring}), masses = torch::ones({kCapacity, ring});
  torch::Tensor out = torch::empty({kHeads, kSize});
  int64_t at = 0;
  HsaStreamStep s;
  s.batch = 1;
  s.heads = s.key_heads = kHeads;
  s.branching = kBranching;
  s.near = near;
  s.head_size = s.value_size = kSize;
  s.capacity = kCapacity;
  s.scale = 0.125;
  s.q = q.data_ptr(), s.k = k.data_ptr(), s.v = v.data_ptr();
  s.keys = keys.data_ptr(), s.values = values.data_ptr(), s.kappas = kappas.data_ptr(), s.masses = masses.data_ptr();
  s.lengths = &at, s.out = out.data_ptr();
  std::vector<double> means;
  for (int round = 0; round < 21; ++round) {
    at = first;
    means.push_back(seconds_of([&] {
                      for (int64_t step = 0; step < count; ++step) TORCH_CHECK(hsa_stream_step(s).ok());
                    }) /
                    static_cast<double>(count));
  }
  return 1e6 * median(means);
}

}  // namespace strata::bench
