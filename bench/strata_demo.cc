// make demo: HKT against flat attention on a small causal problem. What each costs, how close the fused kernel is to
// the dense float64 definition, and how fast it is beside the same mathematics composed from torch operators.
#include <omp.h>

#include <cstdio>

#include "bench/measure.h"
#include "strata/cpu.h"
#include "strata/hkt.h"
#include "torch/composed.h"

namespace strata::bench {
namespace {

constexpr int64_t kHeads = 4, kTokens = 1024, kHeadSize = 32;

// Score products of L levels over those of flat attention: sum_l T_l^2 / T^2.
double cost(int64_t levels) {
  double sum = 0;
  for (int l = 0; l < levels; ++l) {
    const double ratio = static_cast<double>(hkt_level_tokens(kTokens, l)) / kTokens;
    sum += ratio * ratio;
  }
  return sum;
}

// The largest difference between the fused float32 output and the float64 reference on the same numbers.
double difference_from_reference(const Attention& a) {
  HktProblem p;
  p.dtype = DType::kFloat64;
  p.batch = 1;
  p.heads = p.key_heads = kHeads;
  p.tokens = kTokens;
  p.levels = static_cast<int>(a.q.size());
  p.head_size = p.value_size = kHeadSize;
  p.causal = true;
  p.scale = 1.0 / std::sqrt(static_cast<double>(kHeadSize));
  std::vector<torch::Tensor> held;
  auto view_of = [&](const torch::Tensor& t) {
    held.push_back(t.detach().to(torch::kFloat64).contiguous());
    return dense_view(held.back().data_ptr(), kHeads, t.size(2), kHeadSize);
  };
  for (int l = 0; l < p.levels; ++l) {
    p.q[l] = view_of(a.q[l]);
    p.k[l] = view_of(a.k[l]);
  }
  p.v = view_of(a.v);
  const torch::Tensor weights = a.weights.detach().to(torch::kFloat64);
  p.weights = weights.data_ptr();
  const torch::Tensor out = torch::empty({1, kHeads, kTokens, kHeadSize}, torch::kFloat64);
  const torch::Tensor lse = torch::empty({kHeads, kTokens}, torch::kFloat64);
  const Status status = hkt_forward_ref(p, {dense_view(out.data_ptr(), kHeads, kTokens, kHeadSize), lse.data_ptr()});
  TORCH_CHECK(status.ok(), status.message());
  return (a.fused().detach().to(torch::kFloat64) - out).abs().max().item<double>();
}

void run() {
  torch::manual_seed(1);
  std::printf("Strata demo: causal attention over %ld tokens, %ld heads of size %ld, float32, %d threads, %s\n\n",
              static_cast<long>(kTokens), static_cast<long>(kHeads), static_cast<long>(kHeadSize),
              omp_get_max_threads(), isa_name(current_isa()));
  std::printf("%-14s %12s %16s %12s %12s %10s\n", "attention", "score cost", "off reference", "fused", "composed",
              "speed-up");
  std::printf("%-14s %12s %16s %12s %12s %10s\n", "", "(flat = 1)", "(float64)", "fwd+bwd ms", "fwd+bwd ms", "");
  for (int64_t levels = 1; levels <= 4; ++levels) {
    const Attention a(kHeads, kTokens, levels, kHeadSize, /*causal=*/true);
    auto times =
        race({{"fused", a.forward_backward([&] { return a.fused(); })},
              {"composed", a.forward_backward([&] { return composed_hkt(a.q, a.k, a.v, a.weights, a.options); })}},
             7);
    const std::string name = levels == 1 ? "flat" : "HKT L=" + std::to_string(levels);
    std::printf("%-14s %12.4f %16.1e %12.2f %12.2f %9.1fx\n", name.c_str(), cost(levels), difference_from_reference(a),
                1e3 * times["fused"], 1e3 * times["composed"], times["composed"] / times["fused"]);
  }
  std::printf("\nEach level halves the resolution: %ld, %ld, %ld .. tokens. One softmax mixes their scores.\n",
              static_cast<long>(kTokens), static_cast<long>(kTokens / 2), static_cast<long>(kTokens / 4));
}

}  // namespace
}  // namespace strata::bench

int main() try {
  strata::bench::run();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "strata_demo: %s\n", error.what());
  return 1;
}
