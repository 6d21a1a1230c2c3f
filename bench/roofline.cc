#include "bench/roofline.h"

#include <omp.h>

#include <cstring>

#include "bench/measure.h"
#include "strata/hkt.h"
#include "strata/hsa_stream.h"
#ifdef STRATA_CUDA
#include "bench/cuda_measure.h"
#endif

namespace strata::bench {

Ceilings cpu_ceilings(int threads, int rounds) {
  constexpr int64_t kSize = 2048, kCopy = int64_t{1} << 26;  // numbers
  const torch::Tensor a = torch::randn({kSize, kSize}), b = torch::randn({kSize, kSize});
  const torch::Tensor from = torch::randn({kCopy}), to = torch::zeros_like(from);
  auto copy = [&] {
#pragma omp parallel num_threads(threads)
    {
      const int64_t part = kCopy / omp_get_num_threads(), begin = part * omp_get_thread_num();
      std::memcpy(to.data_ptr<float>() + begin, from.data_ptr<float>() + begin, part * sizeof(float));
    }
  };
  auto times = race({{"product", [&] { torch::mm(a, b); }}, {"copy", copy}}, rounds);
  return {2.0 * kSize * kSize * kSize / times["product"], 2.0 * kCopy * sizeof(float) / times["copy"]};
}

AttentionWork hkt_work(int64_t batch, int64_t heads, int64_t tokens, int64_t levels, int64_t head_size, bool causal,
                       int number_bytes) {
  auto pairs = [&](int64_t l) {
    return static_cast<double>(hkt_cost(tokens, static_cast<int>(l))) * (causal ? 0.5 : 1.0);
  };
  return {static_cast<double>(batch),
          static_cast<double>(heads),
          static_cast<double>(tokens),
          static_cast<double>(levels),
          static_cast<double>(head_size),
          pairs(levels),
          pairs(1),
          static_cast<double>(number_bytes)};
}
AttentionWork tree_work(const Tree& tree, int64_t heads, int64_t levels, int64_t head_size, int number_bytes) {
  return {1,
          static_cast<double>(heads),
          static_cast<double>(tree.view().tokens),
          static_cast<double>(levels),
          static_cast<double>(head_size),
          static_cast<double>(tree.cost(static_cast<int>(levels))),
          static_cast<double>(tree.cost()),
          static_cast<double>(number_bytes)};
}
AttentionWork stream_work(int64_t tokens, int branching, int near, int64_t heads, int64_t levels, int64_t head_size,
                          int number_bytes) {
  const auto pairs = static_cast<double>(hsa_stream_cost(tokens, branching, near));
  return {1,
          static_cast<double>(heads),
          static_cast<double>(tokens),
          static_cast<double>(levels),
          static_cast<double>(head_size),
          pairs,
          pairs,
          static_cast<double>(number_bytes)};
}

#ifdef STRATA_CUDA
Ceilings cuda_ceilings(int rounds) {
  constexpr int64_t kSize = 8192, kCopy = int64_t{1} << 29;  // numbers
  const auto options = torch::TensorOptions(torch::kBFloat16).device(torch::kCUDA);
  const Tensor a = torch::randn({kSize, kSize}, options), b = torch::randn({kSize, kSize}, options);
  const double product = milliseconds([&] { torch::mm(a, b); }, rounds);
  const double copy = copy_milliseconds({torch::randn({kCopy}, options)}, rounds);
  return {2e3 * kSize * kSize * kSize / product, 2e3 * kCopy * 2 / copy};
}
#endif

}  // namespace strata::bench
