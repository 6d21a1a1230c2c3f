// HKT on the CPU in bfloat16: beside our float32, and beside the product instruction alone.
#include "bench/hkt_bf16_bench.h"

#include <algorithm>
#include <cstdio>

#include "bench/measure.h"
#include "bench/product_rate.h"
#include "strata/cpu.h"

namespace strata::bench {
namespace {

constexpr int64_t kHeads = 8, kHeadSize = 64, kTokens = 2048, kLongTokens = 8192;

bool has(Isa isa) {
  const std::vector<Isa> isas = supported_isas();
  return std::find(isas.begin(), isas.end(), isa) != isas.end();
}

// Flat attention's FLOP rate over that of the product instruction that its kernel is made of.
double fraction_of_rate(Isa isa, double (*products)(int, int64_t), int64_t repeats, int threads, int rounds) {
  const Isa before = current_isa();
  TORCH_CHECK(set_isa(isa).ok());
  const Attention flat(kHeads, kLongTokens, 1, kHeadSize, false, torch::kBFloat16);
  double flops = 0;
  const auto fast = race({{"products", [&] { flops = products(threads, repeats); }},
                          {"flat", Attention::forward([&] { return flat.fused(); })}},
                         rounds);
  TORCH_CHECK(set_isa(before).ok());
  const double rate = flops / fast.at("products");
  const double ours = 4.0 * kHeads * kLongTokens * kLongTokens * kHeadSize / fast.at("flat");
  std::printf("bfloat16 on %s, T=%ld: flat %.0f GFLOP/s, products alone %.0f GFLOP/s\n", isa_name(isa),
              static_cast<long>(kLongTokens), 1e-9 * ours, 1e-9 * rate);
  return ours / rate;
}

}  // namespace

std::vector<Figure> hkt_bf16_figures(const Arguments& arguments) {
  const Attention single(kHeads, kTokens, 1, kHeadSize);
  const Attention l1(kHeads, kTokens, 1, kHeadSize, false, torch::kBFloat16);
  const Attention l3(kHeads, kTokens, 3, kHeadSize, false, torch::kBFloat16);
  auto fused = [](const Attention& a) { return [&a] { return a.fused(); }; };
  auto fast = race({{"float32", Attention::forward(fused(single))},
                    {"l1", Attention::forward(fused(l1))},
                    {"l3", Attention::forward(fused(l3))},
                    {"float32_both", single.forward_backward(fused(single))},
                    {"l1_both", l1.forward_backward(fused(l1))},
                    {"l3_both", l3.forward_backward(fused(l3))}},
                   arguments.rounds);
  std::printf("bfloat16 on %s, milliseconds: flat %.1f, HKT L=3 %.1f; with backward: flat %.1f, HKT %.1f\n",
              isa_name(current_isa()), 1e3 * fast["l1"], 1e3 * fast["l3"], 1e3 * fast["l1_both"],
              1e3 * fast["l3_both"]);
  std::vector<Figure> figures = {
      {"hkt_cpu_bf16_fwd_l3_over_l1_t2048", fast["l3"] / fast["l1"], "<= 1.3"},
      {"hkt_cpu_bf16_fwdbwd_l3_over_l1_t2048", fast["l3_both"] / fast["l1_both"], ""},
      {"hkt_cpu_bf16_l1_float32_over_bf16_fwd_t2048", fast["float32"] / fast["l1"], ""},
      {"hkt_cpu_bf16_l1_float32_over_bf16_fwdbwd_t2048", fast["float32_both"] / fast["l1_both"], ""},
  };
  const int rounds = std::min(arguments.rounds, 3);  // long enough to need no more
  if (has(Isa::kAvx512Bf16)) {
    const double fraction = fraction_of_rate(Isa::kAvx512Bf16, run_vdpbf16ps, 10'000'000, arguments.threads, rounds);
    figures.push_back({"hkt_cpu_bf16_l1_fwd_fraction_of_vdpbf16ps_rate_t8192", fraction, ""});
  }
  if (has(Isa::kAmx)) {
    const double fraction = fraction_of_rate(Isa::kAmx, run_tdpbf16ps, 5'000'000, arguments.threads, rounds);
    figures.push_back({"hkt_cpu_bf16_l1_fwd_fraction_of_tile_rate_t8192", fraction, ">= 0.25"});
  } else {
    std::printf("hkt_cpu_bf16_l1_fwd_fraction_of_tile_rate_t8192: skipped, this machine has no AMX\n");
  }
  return figures;
}

}  // namespace strata::bench
