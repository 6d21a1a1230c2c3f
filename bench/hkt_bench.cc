// The figures of HKT on the CPU, as ratios taken side by side in one run (docs/PERFORMANCE.md says what each means).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "bench/hkt_bf16_bench.h"
#include "bench/measure.h"
#include "bench/report.h"
#include "strata/cpu.h"
#include "strata/hkt.h"
#include "torch/composed.h"

namespace strata::bench {
namespace {

constexpr int64_t kHeads = 8, kHeadSize = 64, kTokens = 2048;

// Bytes of this process's memory: resident now (VmRSS) or at most since the last reset (VmHWM).
double resident_bytes(const char* field) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind(field, 0) == 0) return std::strtod(line.c_str() + std::strlen(field) + 1, nullptr) * 1024;
  }
  return 0;
}

// Peak memory beyond inputs, outputs and gradients, forward and backward, per token. The core is called directly, with
// all of its arrays touched beforehand, so that what remains is the kernels' own.
double extra_bytes_per_token(int64_t tokens, int threads) {
  const Attention a(kHeads, tokens, 3, kHeadSize);
  std::vector<torch::Tensor> held;
  auto zeros = [&](const torch::Tensor& like) {
    held.push_back(torch::ones_like(like.detach()));
    return dense_view(held.back().data_ptr(), like.size(1), like.size(2), like.size(3));
  };
  HktProblem p;
  p.batch = 1;
  p.heads = p.key_heads = kHeads;
  p.tokens = tokens;
  p.levels = 3;
  p.head_size = p.value_size = kHeadSize;
  p.scale = 0.125;
  p.threads = threads;
  p.weights = a.weights.data_ptr();
  HktGradients g;
  for (int l = 0; l < 3; ++l) {
    p.q[l] = zeros(a.q[l]);
    p.k[l] = zeros(a.k[l]);
    g.dq[l] = zeros(a.q[l]);
    g.dk[l] = zeros(a.k[l]);
  }
  p.v = zeros(a.v);
  g.dv = zeros(a.v);
  g.dout = zeros(a.v);
  const torch::Tensor dweights = torch::ones({kHeads, 3}), lse = torch::ones({kHeads, tokens});
  g.dweights = dweights.data_ptr();
  const HktOutputs outputs{zeros(a.v), lse.data_ptr()};

  // Threads and their stacks exist before the measurement starts.
  HktProblem small = p;
  small.tokens = 64;
  TORCH_CHECK(hkt_forward(small, outputs).ok() && hkt_backward(small, outputs, g).ok());
  std::ofstream("/proc/self/clear_refs") << "5";  // resets VmHWM
  const double before = resident_bytes("VmRSS:");
  TORCH_CHECK(hkt_forward(p, outputs).ok() && hkt_backward(p, outputs, g).ok());
  return std::max(0.0, resident_bytes("VmHWM:") - before) / static_cast<double>(tokens);
}

std::vector<Figure> measure(int threads, int rounds) {
  torch::manual_seed(1);
  const Attention l1(kHeads, kTokens, 1, kHeadSize), l3(kHeads, kTokens, 3, kHeadSize);
  const Attention causal_l1(kHeads, kTokens, 1, kHeadSize, true), causal_l3(kHeads, kTokens, 3, kHeadSize, true);
  const torch::Tensor A = torch::randn({2048, 2048}), B = torch::randn({2048, 2048});
  auto composed = [&] { return composed_hkt(l3.q, l3.k, l3.v, l3.weights); };
  // The features a user would concatenate: [a_l q^(l)_{i >> l}] and [k^(l)_{j >> l}], then flat attention on them.
  auto concatenated = [&] {
    std::vector<torch::Tensor> q, k;
    for (int64_t l = 0; l < 3; ++l) {
      const torch::Tensor weight = l3.weights.select(1, l).view({kHeads, 1, 1});
      q.push_back((l3.q[l] * weight).repeat_interleave(int64_t{1} << l, 2));
      k.push_back(l3.k[l].repeat_interleave(int64_t{1} << l, 2));
    }
    HktOptions options;
    options.scale = 0.125;
    return std::get<0>(hkt_attention({torch::cat(q, -1)}, {torch::cat(k, -1)}, l3.v, l1.weights, options));
  };
  auto fused = [](const Attention& a) { return [&a] { return a.fused(); }; };

  auto fast = race(
      {
          {"sgemm", [&] { torch::mm(A, B); }},
          {"l1", Attention::forward(fused(l1))},
          {"l3", Attention::forward(fused(l3))},
          {"concat", Attention::forward(concatenated)},
          {"causal_l1", Attention::forward(fused(causal_l1))},
          {"causal_l3", Attention::forward(fused(causal_l3))},
          {"l1_both", l1.forward_backward(fused(l1))},
          {"l3_both", l3.forward_backward(fused(l3))},
          {"composed", Attention::forward(composed)},
          {"composed_both", l3.forward_backward(composed)},
      },
      rounds);
  const double flops = 4.0 * kHeads * kTokens * kTokens * kHeadSize;
  const double sgemm_rate = 2.0 * 2048 * 2048 * 2048 / fast["sgemm"];
  std::printf(
      "milliseconds: sgemm 2048^3 %.1f (%.0f GFLOP/s), flat %.1f, HKT L=3 %.1f, composed %.1f; with backward: flat "
      "%.1f, "
      "HKT %.1f, composed %.1f\n\n",
      1e3 * fast["sgemm"], 1e-9 * sgemm_rate, 1e3 * fast["l1"], 1e3 * fast["l3"], 1e3 * fast["composed"],
      1e3 * fast["l1_both"], 1e3 * fast["l3_both"], 1e3 * fast["composed_both"]);
  auto work = [&](const char* name, int64_t levels, bool causal, bool backward) {
    return hkt_work(1, kHeads, kTokens, levels, kHeadSize, causal, sizeof(float)).work(fast[name], backward);
  };
  return {
      {"hkt_cpu_fwd_l3_over_l1_t2048", fast["l3"] / fast["l1"], "<= 1.20", work("l3", 3, false, false)},
      {"hkt_cpu_fwd_causal_l3_over_l1_t2048", fast["causal_l3"] / fast["causal_l1"], "",
       work("causal_l3", 3, true, false)},
      {"hkt_cpu_fwdbwd_l3_over_l1_t2048", fast["l3_both"] / fast["l1_both"], "<= 1.24",
       work("l3_both", 3, false, true)},
      {"hkt_cpu_composed_over_fused_fwd_t2048", fast["composed"] / fast["l3"], ">= 9"},
      {"hkt_cpu_composed_over_fused_fwdbwd_t2048", fast["composed_both"] / fast["l3_both"], ">= 7"},
      {"hkt_cpu_concat_over_fused_fwd_t2048", fast["concat"] / fast["l3"], ">= 2"},
      {"hkt_cpu_l1_fwd_fraction_of_sgemm_t2048", flops / fast["l1"] / sgemm_rate,
       current_isa() >= Isa::kAvx512 ? ">= 0.75" : ">= 0.6", work("l1", 1, false, false)},
      {"hkt_cpu_fwdbwd_over_fwd_t2048", fast["l3_both"] / fast["l3"], "<= 3.7"},
      {"hkt_cpu_extra_bytes_per_token_t16384", extra_bytes_per_token(16384, threads), "<= 4096"},
  };
}

}  // namespace

std::vector<Figure> hkt_figures(const Arguments& arguments) {
  std::printf("HKT on the CPU: float32, 1 x %ld heads x %ld tokens x %ld, %d threads, %s, median of %d rounds\n",
              static_cast<long>(kHeads), static_cast<long>(kTokens), static_cast<long>(kHeadSize), arguments.threads,
              isa_name(current_isa()), arguments.rounds);
  std::vector<Figure> figures = measure(arguments.threads, arguments.rounds);
  for (Figure& figure : hkt_bf16_figures(arguments)) figures.push_back(std::move(figure));
  return figures;
}

}  // namespace strata::bench
