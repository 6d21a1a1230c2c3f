// Strata attention on the CPU: the tree form, the streaming form with neighbours, decoding; the core on arrays that
// exist already.
#include <cstdio>

#include "bench/measure.h"
#include "bench/report.h"
#include "strata/cpu.h"
#include "strata/hkt.h"
#include "strata/hsa.h"
#include "strata/hsa_stream.h"

namespace strata::bench {
namespace {

constexpr int64_t kStrataHeads = 8;

// One sequence with its arrays, of which the problems of HKT and of both forms are views.
struct LevelArrays {
  LevelArrays(int64_t tokens_, int levels_, int64_t size_, int threads_)
      : tokens(tokens_), size(size_), levels(levels_), threads(threads_) {
    for (int l = 0; l < levels; ++l) {
      for (auto* list : {&q, &k, &dq, &dk})
        list->push_back(torch::randn({kStrataHeads, hkt_level_tokens(tokens, l), size}));
    }
    for (torch::Tensor* t : {&v, &out, &dout, &dv}) *t = torch::randn({kStrataHeads, tokens, size});
    for (torch::Tensor* t : {&lse, &score}) *t = torch::zeros({kStrataHeads, tokens});
    weights = torch::full({kStrataHeads, levels}, 1.0 / levels);
    dweights = torch::zeros({kStrataHeads, levels});
  }
  LevelArrays(const LevelArrays&) = delete;

  View view(const torch::Tensor& t) const { return {t.data_ptr(), {0, t.size(1) * t.size(2), t.size(2), 1}}; }
  template <class Problem>
  void fill(Problem& p) const {
    p.heads = p.key_heads = kStrataHeads;
    p.levels = levels;
    p.head_size = p.value_size = static_cast<int>(size);
    for (int l = 0; l < levels; ++l) p.q[l] = view(q[l]), p.k[l] = view(k[l]);
    p.v = view(v);
    p.scale = 0.125;
    p.threads = threads;
  }
  template <class Gradients>
  void fill_gradients(Gradients& g) const {
    g.dout = view(dout);
    for (int l = 0; l < levels; ++l) g.dq[l] = view(dq[l]), g.dk[l] = view(dk[l]);
    g.dv = view(dv);
  }

  int64_t tokens, size;
  int levels, threads;
  std::vector<torch::Tensor> q, k, dq, dk;
  torch::Tensor v, out, dout, dv, lse, score, weights, dweights;
};

struct TreeForm {
  TreeForm(const LevelArrays& a, int64_t branching) {
    const Status status = balanced_tree(a.tokens, branching, Domain::kSet, &tree);
    TORCH_CHECK(status.ok(), status.message());
    view = tree.view();
    a.fill(p);
    p.sequences = 1;
    p.trees = &view;
    p.batch_of = p.first_token = &zero;
    for (const int64_t*& first : p.first_row) first = &zero;
    p.level_weights = a.weights.data_ptr();
    outputs = {a.view(a.out), a.score.data_ptr()};
    a.fill_gradients(gradients);
    gradients.dlevel_weights = a.dweights.data_ptr();
  }
  TreeForm(const TreeForm&) = delete;
  std::function<void()> forward() {
    return [this] { TORCH_CHECK(hsa_forward(p, outputs).ok()); };
  }
  std::function<void()> both() {
    return [this] { TORCH_CHECK(hsa_forward(p, outputs).ok() && hsa_backward(p, gradients).ok()); };
  }
  int64_t zero = 0;
  Tree tree;
  TreeView view;
  HsaProblem p;
  HsaOutputs outputs;
  HsaGradients gradients;
};

struct StreamForm {
  StreamForm(const LevelArrays& a, int branching, int near) {
    a.fill(p);
    p.batch = 1;
    p.tokens = a.tokens;
    p.branching = branching;
    p.near = near;
    p.level_weights = a.weights.data_ptr();
    outputs = {a.view(a.out), a.lse.data_ptr()};
    a.fill_gradients(gradients);
  }
  std::function<void()> forward() const {
    return [this] { TORCH_CHECK(hsa_stream_forward(p, outputs).ok()); };
  }
  std::function<void()> both() const {
    return
        [this] { TORCH_CHECK(hsa_stream_forward(p, outputs).ok() && hsa_stream_backward(p, outputs, gradients).ok()); };
  }
  HsaStreamProblem p;
  HsaStreamOutputs outputs;
  HsaStreamGradients gradients;
};

std::function<void()> hkt_forward_of(const LevelArrays& a, bool causal) {
  HktProblem p;
  a.fill(p);
  p.batch = 1;
  p.tokens = a.tokens;
  p.weights = a.weights.data_ptr();
  p.causal = causal;
  const HktOutputs outputs{a.view(a.out), a.lse.data_ptr()};
  return [p, outputs] { TORCH_CHECK(hkt_forward(p, outputs).ok()); };
}

// Mean microseconds of a decoding step over 512 tokens from `first` on.
double near_decode_microseconds(int64_t first, int near, int branching) {
  constexpr int64_t kCapacity = 8, kSize = 64;
  const int64_t ring = int64_t{near} * branching;
  auto rows = [](std::vector<int64_t> sizes) { return torch::randn(sizes); };
  const torch::Tensor q = rows({kStrataHeads, kSize}), k = rows({kStrataHeads, kSize}), v = rows({kStrataHeads, kSize});
  torch::Tensor keys = rows({kStrataHeads, kCapacity, ring, kSize}), values = torch::randn_like(keys),
                kappas = torch::zeros({kStrataHeads, kCapacity, ring}), masses = torch::ones({kCapacity, ring}),
                out = torch::empty({kStrataHeads, kSize});
  int64_t at = 0;
  HsaStreamStep s;
  s.batch = 1;
  s.heads = s.key_heads = kStrataHeads;
  s.branching = branching;
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
                      for (int64_t step = 0; step < 512; ++step) TORCH_CHECK(hsa_stream_step(s).ok());
                    }) /
                    512);
  }
  return 1e6 * median(means);
}

// The shapes beside the one with the bars: the tree form with three levels over one, and HKT over both forms.
void add_neighbours(const Arguments& arguments, std::vector<Figure>& figures) {
  constexpr int64_t kTokens = 4096;
  struct Shape {
    int64_t size;
    int branching;
  };
  for (const auto& [size, branching] : {Shape{64, 8}, {64, 16}, {64, 32}, {64, 64}, {128, 16}}) {
    const LevelArrays one(kTokens, 1, size, arguments.threads), three(kTokens, 3, size, arguments.threads);
    TreeForm tree1(one, branching), tree3(three, branching);
    const StreamForm near1(one, branching, 1), near2(one, branching, 2), levels3(three, branching, 2);
    auto times = race({{"tree1", tree1.forward()},
                       {"tree3", tree3.forward()},
                       {"near1", near1.forward()},
                       {"near2", near2.forward()},
                       {"levels3", levels3.forward()},
                       {"hkt", hkt_forward_of(three, false)},
                       {"hkt_causal", hkt_forward_of(three, true)}},
                      std::min(arguments.rounds, 5));
    const std::string where = "_b" + std::to_string(branching) + "_d" + std::to_string(size) + "_t4096";
    figures.push_back({"strata_cpu_tree_fwd_l3_over_l1" + where, times["tree3"] / times["tree1"], ""});
    figures.push_back({"strata_cpu_hkt_over_tree_fwd" + where, times["hkt"] / times["tree3"], ">= 1"});
    figures.push_back({"strata_cpu_stream_near2_over_near1_fwd" + where, times["near2"] / times["near1"], ""});
    figures.push_back({"strata_cpu_stream_near2_fwd_l3_over_l1" + where, times["levels3"] / times["near2"], ""});
    figures.push_back({"strata_cpu_hkt_over_stream_near2_fwd" + where, times["hkt_causal"] / times["levels3"], ">= 1"});
  }
}

}  // namespace

std::vector<Figure> strata_figures(const Arguments& arguments) {
  constexpr int kBranching = 16;
  std::printf("Strata attention on the CPU: float32, %ld heads of 64, branching %d, %d threads, %s\n",
              static_cast<long>(kStrataHeads), kBranching, arguments.threads, isa_name(current_isa()));
  torch::manual_seed(1);
  const LevelArrays one(16384, 1, 64, arguments.threads), three(16384, 3, 64, arguments.threads);
  TreeForm tree1(one, kBranching), tree3(three, kBranching);
  const StreamForm near1(one, kBranching, 1), near2(one, kBranching, 2);
  auto fast = race({{"tree1", tree1.forward()},
                    {"tree3", tree3.forward()},
                    {"tree1_both", tree1.both()},
                    {"tree3_both", tree3.both()},
                    {"near1", near1.forward()},
                    {"near2", near2.forward()},
                    {"near1_both", near1.both()},
                    {"near2_both", near2.both()}},
                   arguments.rounds);
  auto slow = race({{"hkt", hkt_forward_of(three, false)}, {"tree3", tree3.forward()}}, std::min(arguments.rounds, 3));
  const double late = near_decode_microseconds(1048575 - 256, 2, kBranching),
               early = near_decode_microseconds(1023 - 256, 2, kBranching);
  const int64_t slots = hsa_stream_slots(1048576, kBranching, 2);
  std::printf(
      "milliseconds, T=16384: tree form %.1f with one level, %.1f with three; streaming %.1f with near 1, %.1f with "
      "near 2; HKT %.0f; decoding %.1f and %.1f us a token; a cache of %ld slots has %.0f KB\n\n",
      1e3 * fast["tree1"], 1e3 * fast["tree3"], 1e3 * fast["near1"], 1e3 * fast["near2"], 1e3 * slow["hkt"], early,
      late, static_cast<long>(slots), static_cast<double>(slots * kStrataHeads * (64 + 64 + 1) * 4) / 1024);
  std::vector<Figure> figures = {
      {"strata_cpu_tree_fwd_l3_over_l1_t16384", fast["tree3"] / fast["tree1"], "<= 1.6"},
      {"strata_cpu_tree_fwdbwd_l3_over_l1_t16384", fast["tree3_both"] / fast["tree1_both"], "<= 1.7"},
      {"strata_cpu_hkt_over_tree_fwd_t16384", slow["hkt"] / slow["tree3"], ">= 100"},
      {"strata_cpu_stream_near2_over_near1_fwd_t16384", fast["near2"] / fast["near1"], "<= 2.3"},
      {"strata_cpu_stream_near2_over_near1_fwdbwd_t16384", fast["near2_both"] / fast["near1_both"], ""},
      {"strata_stream_decode_us_ratio_t1m_over_t1k", late / early, "<= 2.5"},
      {"strata_stream_cache_slots_t1m", static_cast<double>(slots), "<= 170"}};
  add_neighbours(arguments, figures);
  return figures;
}

}  // namespace strata::bench
