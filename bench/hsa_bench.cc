// The figures of HSA on the CPU (docs/PERFORMANCE.md says what each means).
#include <cstring>

#include "bench/decode.h"
#include "bench/hsa_bf16_bench.h"
#include "bench/measure.h"
#include "bench/report.h"
#include "strata/cpu.h"
#include "strata/hkt.h"
#include "strata/hsa.h"
#include "strata/hsa_stream.h"
#include "torch/hsa_op.h"

namespace strata::bench {
namespace {

constexpr int64_t kHeads = 8, kHeadSize = 64, kBranching = 16;

// One sequence with its arrays, all allocated and touched beforehand: the core is called directly, so that what is
// timed is the attention and not fresh memory.
struct TreeAttention {
  TreeAttention(int64_t tokens, bool star, int threads) {
    for (torch::Tensor* t : {&q, &k, &v, &dout, &out, &dq, &dk, &dv}) *t = torch::randn({kHeads, tokens, kHeadSize});
    for (torch::Tensor* t : {&lse, &score}) *t = torch::zeros({kHeads, tokens});
    weights = torch::ones({kHeads});
    const Status status =
        star ? star_tree(tokens, Domain::kSet, &tree) : balanced_tree(tokens, kBranching, Domain::kSet, &tree);
    TORCH_CHECK(status.ok(), status.message());
    view = tree.view();
    auto of = [&](torch::Tensor& t) { return dense_view(t.data_ptr(), kHeads, tokens, kHeadSize); };
    hsa.sequences = 1;
    hsa.trees = &view;
    hsa.batch_of = hsa.first_token = &zero;
    flat.batch = 1;
    flat.key_heads = kHeads;
    flat.tokens = tokens;
    flat.weights = weights.data_ptr();
    hsa.heads = hsa.key_heads = flat.heads = kHeads;
    hsa.head_size = hsa.value_size = flat.head_size = flat.value_size = kHeadSize;
    hsa.scale = flat.scale = 0.125;
    hsa.threads = flat.threads = threads;
    hsa.q[0] = flat.q[0] = of(q);
    hsa.k[0] = flat.k[0] = of(k);
    hsa.v = flat.v = of(v);
    hsa_gradients.dout = flat_gradients.dout = of(dout);
    hsa_gradients.dq[0] = flat_gradients.dq[0] = of(dq);
    hsa_gradients.dk[0] = flat_gradients.dk[0] = of(dk);
    hsa_gradients.dv = flat_gradients.dv = of(dv);
    flat_gradients.dweights = dweights;
    hsa_outputs = {of(out), score.data_ptr()};
    flat_outputs = {of(out), lse.data_ptr()};
  }
  TreeAttention(const TreeAttention&) = delete;

  std::function<void()> forward() {
    return [this] { TORCH_CHECK(hsa_forward(hsa, hsa_outputs).ok()); };
  }
  std::function<void()> both() {
    return [this] { TORCH_CHECK(hsa_forward(hsa, hsa_outputs).ok() && hsa_backward(hsa, hsa_gradients).ok()); };
  }
  std::function<void()> flat_forward() {
    return [this] { TORCH_CHECK(hkt_forward(flat, flat_outputs).ok()); };
  }
  std::function<void()> flat_both() {
    return [this] {
      TORCH_CHECK(hkt_forward(flat, flat_outputs).ok() && hkt_backward(flat, flat_outputs, flat_gradients).ok());
    };
  }

  // Through the torch operators, whose outputs are fresh memory at every call, in huge pages (torch/output_memory.h).
  std::function<void()> torch_forward() {
    return Attention::forward([this, encoded = encode_tree(tree)] {
      return std::get<0>(hsa_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), {encoded}));
    });
  }
  std::function<void()> flat_torch_forward() {
    return Attention::forward([this] {
      return std::get<0>(hkt_attention({q.unsqueeze(0)}, {k.unsqueeze(0)}, v.unsqueeze(0), torch::ones({kHeads, 1})));
    });
  }

  torch::Tensor q, k, v, dout, out, dq, dk, dv, lse, score, weights;
  float dweights[kHeads];
  Tree tree;
  TreeView view;
  const int64_t zero = 0;
  HsaProblem hsa;
  HktProblem flat;
  HsaOutputs hsa_outputs;
  HktOutputs flat_outputs;
  HsaGradients hsa_gradients;
  HktGradients flat_gradients;
};

// A copy of as many bytes as q, k, v and the output hold.
struct Copy {
  explicit Copy(int64_t tokens, int threads_) : threads(threads_) {
    from = torch::randn({4, kHeads * tokens * kHeadSize});
    to = torch::zeros_like(from);
  }
  void operator()() const {
    const auto bytes = static_cast<int64_t>(from.nbytes()) / threads;
#pragma omp parallel num_threads(threads)
    std::memcpy(static_cast<char*>(to.data_ptr()) + bytes * omp_get_thread_num(),
                static_cast<const char*>(from.data_ptr()) + bytes * omp_get_thread_num(), bytes);
  }
  int threads;
  torch::Tensor from, to;
};

std::vector<Figure> measure(const Arguments& arguments) {
  torch::manual_seed(1);
  const int rounds = arguments.rounds;
  TreeAttention t16(16384, false, arguments.threads), t64(65536, false, arguments.threads),
      star(2048, true, arguments.threads);
  const Copy copy(65536, arguments.threads);
  auto fast = race({{"t16", t16.forward()},
                    {"t64", t64.forward()},
                    {"copy", copy},
                    {"t16_both", t16.both()},
                    {"t64_torch", t64.torch_forward()},
                    {"star", star.forward()},
                    {"star_flat", star.flat_forward()}},
                   rounds);
  // Flat attention over 16384 tokens takes seconds: fewer rounds, with HSA again beside it.
  auto slow = race({{"flat", t16.flat_forward()},
                    {"hsa", t16.forward()},
                    {"flat_both", t16.flat_both()},
                    {"hsa_both", t16.both()},
                    {"flat_torch", t16.flat_torch_forward()},
                    {"hsa_torch", t16.torch_forward()}},
                   std::min(rounds, 3));
  // Around a length, and right before it, where the cache is at its fullest.
  const double late = decode_microseconds(1048575 - 256, 512), early = decode_microseconds(1023 - 256, 512);
  const double late_before = decode_microseconds(1048575 - 256, 256),
               early_before = decode_microseconds(1023 - 256, 256);
  std::printf(
      "milliseconds: HSA T=16384 %.1f, with backward %.1f; T=65536 %.1f; copy %.1f; flat T=16384 %.0f, with backward "
      "%.0f; "
      "decoding %.1f and %.1f us a token\n\n",
      1e3 * fast["t16"], 1e3 * fast["t16_both"], 1e3 * fast["t64"], 1e3 * fast["copy"], 1e3 * slow["flat"],
      1e3 * slow["flat_both"], early, late);
  auto work = [&](const TreeAttention& attention, double seconds, bool backward) {
    return tree_work(attention.tree, kHeads, 1, kHeadSize, sizeof(float)).work(seconds, backward);
  };
  return {{"hsa_cpu_fwd_time_ratio_t65536_over_t16384", fast["t64"] / fast["t16"], "<= 4.7"},
          {"hsa_cpu_flat_over_hsa_fwd_t16384", slow["flat"] / slow["hsa"], ">= 150", work(t16, slow["hsa"], false)},
          {"hsa_cpu_flat_over_hsa_fwdbwd_t16384", slow["flat_both"] / slow["hsa_both"], ">= 100",
           work(t16, slow["hsa_both"], true)},
          {"hsa_cpu_fwd_over_memcpy_t65536", fast["t64"] / fast["copy"], "<= 3", work(t64, fast["t64"], false)},
          {"hsa_torch_flat_over_hsa_fwd_t16384", slow["flat_torch"] / slow["hsa_torch"], ">= 150"},
          {"hsa_torch_fwd_over_memcpy_t65536", fast["t64_torch"] / fast["copy"], ""},
          {"hsa_cpu_star_over_flat_fwd_t2048", fast["star"] / fast["star_flat"], "<= 1.15"},
          {"hsa_stream_decode_us_ratio_t1m_over_t1k", late / early, "<= 2.5"},
          {"hsa_stream_decode_us_ratio_before_t1m_over_t1k", late_before / early_before, ""},
          {"hsa_stream_cache_entries_t1m", static_cast<double>(hsa_stream_entries(1048575, kBranching)), "<= 100"}};
}

}  // namespace

std::vector<Figure> hsa_figures(const Arguments& arguments) {
  std::printf("HSA on the CPU: float32, %ld heads of %ld, branching %ld, %d threads, %s\n", static_cast<long>(kHeads),
              static_cast<long>(kHeadSize), static_cast<long>(kBranching), arguments.threads, isa_name(current_isa()));
  std::vector<Figure> figures = measure(arguments);
  for (Figure& figure : hsa_bf16_figures(arguments)) figures.push_back(std::move(figure));
  return figures;
}

}  // namespace strata::bench
