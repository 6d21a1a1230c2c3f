// Strata attention on the CPU: the tree form, the streaming form with neighbours, decoding; the core on arrays that
// exist already.
#include <cstdio>
#include <random>

#include "bench/decode.h"
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

Tree balanced(int64_t tokens, int64_t branching) {
  Tree tree;
  const Status status = balanced_tree(tokens, branching, Domain::kSet, &tree);
  TORCH_CHECK(status.ok(), status.message());
  return tree;
}

// Like a text in bytes: words of 1 to 12 tokens, sentences of 5 to 25 words.
Tree words_and_sentences(int64_t tokens) {
  std::mt19937_64 random(3);
  auto draw = [&](int low, int high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  std::vector<Span> spans;
  for (int64_t at = 0; at < tokens;) {
    const int64_t sentence = at;
    for (int64_t words = draw(5, 25); words > 0 && at < tokens; --words) {
      const int64_t end = std::min(tokens, at + draw(1, 12));
      spans.push_back({at, end});
      at = end;
    }
    spans.push_back({sentence, at});
  }
  Tree tree, split;
  Status status = tree_from_spans(tokens, spans, Domain::kSet, &tree);
  if (status.ok()) status = split_families(tree, 16, &split);
  TORCH_CHECK(status.ok(), status.message());
  return split;
}

struct TreeForm {
  TreeForm(const LevelArrays& a, const Tree& made) : tree(made) {
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

// The shapes beside the one with the bars: several levels over one, and HKT over both forms.
struct NearbyShape {
  const char* name;
  int64_t tokens;
  int levels;
  int64_t size;
  int branching;  // of the tree form, 0: a tree of words and sentences
};
constexpr NearbyShape kNearbyShapes[] = {
    {"b8", 4096, 3, 64, 8},     {"b16", 4096, 3, 64, 16}, {"b32", 4096, 3, 64, 32}, {"b64", 4096, 3, 64, 64},
    {"d128", 4096, 3, 128, 16}, {"d32", 4096, 3, 32, 16}, {"b5", 4096, 3, 64, 5},   {"b12", 4096, 3, 64, 12},
    {"b20", 4096, 3, 64, 20},   {"l2", 4096, 2, 64, 16},  {"l5", 4096, 5, 64, 16},  {"l8", 4096, 8, 64, 16},
    {"words", 4096, 3, 64, 0},  {"t256", 256, 3, 64, 16}};

void add_nearby_shapes(const Arguments& arguments, std::vector<Figure>& figures) {
  for (const NearbyShape& shape : kNearbyShapes) {
    const LevelArrays one(shape.tokens, 1, shape.size, arguments.threads),
        more(shape.tokens, shape.levels, shape.size, arguments.threads);
    const Tree tree =
        shape.branching == 0 ? words_and_sentences(shape.tokens) : balanced(shape.tokens, shape.branching);
    TreeForm tree1(one, tree), tree_more(more, tree);
    const int branching = shape.branching == 0 ? 16 : shape.branching;
    const StreamForm near2(one, branching, 2), near_more(more, branching, 2);
    auto times = race({{"tree1", tree1.forward()},
                       {"tree", tree_more.forward()},
                       {"tree1_both", tree1.both()},
                       {"tree_both", tree_more.both()},
                       {"near2", near2.forward()},
                       {"stream", near_more.forward()},
                       {"near2_both", near2.both()},
                       {"stream_both", near_more.both()},
                       {"hkt", hkt_forward_of(more, false)},
                       {"hkt_causal", hkt_forward_of(more, true)}},
                      std::min(arguments.rounds, 5));
    auto add = [&](const std::string& name, const char* over, const char* under, const char* bar) {
      figures.push_back({"strata_cpu_" + name + "_" + shape.name, times[over] / times[under], bar});
    };
    add("tree_fwd_levels_over_l1", "tree", "tree1", "");
    add("tree_fwdbwd_levels_over_l1", "tree_both", "tree1_both", "");
    add("hkt_over_tree_fwd", "hkt", "tree", ">= 1");
    if (shape.branching == 0) continue;
    add("stream_near2_fwd_levels_over_l1", "stream", "near2", "");
    add("stream_near2_fwdbwd_levels_over_l1", "stream_both", "near2_both", "");
    add("hkt_over_stream_near2_fwd", "hkt_causal", "stream", ">= 1");
  }
}

}  // namespace

std::vector<Figure> strata_figures(const Arguments& arguments) {
  constexpr int kBranching = 16;
  std::printf("Strata attention on the CPU: float32, %ld heads of 64, branching %d, %d threads, %s\n",
              static_cast<long>(kStrataHeads), kBranching, arguments.threads, isa_name(current_isa()));
  torch::manual_seed(1);
  const LevelArrays one(16384, 1, 64, arguments.threads), three(16384, 3, 64, arguments.threads);
  const Tree tree = balanced(16384, kBranching);
  TreeForm tree1(one, tree), tree3(three, tree);
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
  const double late = decode_microseconds(1048575 - 256, 512, 2), early = decode_microseconds(1023 - 256, 512, 2);
  const int64_t slots = hsa_stream_slots(1048576, kBranching, 2);
  std::printf(
      "milliseconds, T=16384: tree form %.1f with one level, %.1f with three; streaming %.1f with near 1, %.1f with "
      "near 2; HKT %.0f; decoding %.1f and %.1f us a token; a cache of %ld slots has %.0f KB\n\n",
      1e3 * fast["tree1"], 1e3 * fast["tree3"], 1e3 * fast["near1"], 1e3 * fast["near2"], 1e3 * slow["hkt"], early,
      late, static_cast<long>(slots), static_cast<double>(slots * kStrataHeads * (64 + 64 + 1) * 4) / 1024);
  const AttentionWork trees = tree_work(tree, kStrataHeads, 3, 64, sizeof(float)),
                      streams = stream_work(16384, kBranching, 2, kStrataHeads, 1, 64, sizeof(float));
  std::vector<Figure> figures = {{"strata_cpu_tree_fwd_l3_over_l1_t16384", fast["tree3"] / fast["tree1"], "<= 1.6",
                                  trees.work(fast["tree3"], false)},
                                 {"strata_cpu_tree_fwdbwd_l3_over_l1_t16384", fast["tree3_both"] / fast["tree1_both"],
                                  "<= 1.7", trees.work(fast["tree3_both"], true)},
                                 {"strata_cpu_hkt_over_tree_fwd_t16384", slow["hkt"] / slow["tree3"], ">= 100"},
                                 {"strata_cpu_stream_near2_over_near1_fwd_t16384", fast["near2"] / fast["near1"],
                                  "<= 2.3", streams.work(fast["near2"], false)},
                                 {"strata_cpu_stream_near2_over_near1_fwdbwd_t16384",
                                  fast["near2_both"] / fast["near1_both"], "", streams.work(fast["near2_both"], true)},
                                 {"strata_stream_decode_us_ratio_t1m_over_t1k", late / early, "<= 2.5"},
                                 {"strata_stream_cache_slots_t1m", static_cast<double>(slots), "<= 170"}};
  add_nearby_shapes(arguments, figures);
  return figures;
}

}  // namespace strata::bench
