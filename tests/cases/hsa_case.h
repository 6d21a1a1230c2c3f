// Random trees and HSA problems over them. The generator makes all sorts: bushy, thin, chains, stars, mixed families,
// with weights of zero; a failure prints the tree.
#pragma once

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "cases/array.h"
#include "strata/hsa.h"

namespace strata::test {

enum class Shape { kRandom, kChain, kStar, kBalanced, kLeftDeep };

// A random tree over `tokens` tokens with families of at most `widest` children.
inline Tree random_tree(int64_t tokens, Shape shape, int64_t widest, Domain domain, std::mt19937_64& random) {
  Tree tree;
  Status status;
  auto uniform = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  if (shape == Shape::kStar || tokens == 0) {
    status = star_tree(tokens, domain, &tree);
  } else if (shape == Shape::kBalanced) {
    status = balanced_tree(tokens, std::max<int64_t>(2, widest), domain, &tree);
  } else {
    // Start from the leaves and join runs of neighbours until one node is left; tree_from_parents takes any numbering
    // in which leaves come in order.
    std::vector<int64_t> parent(tokens, -1), row(tokens);
    for (int64_t t = 0; t < tokens; ++t) row[t] = t;
    do {
      const auto size = static_cast<int64_t>(row.size());
      int64_t count = shape == Shape::kRandom ? uniform(1, std::min(widest, size)) : std::min<int64_t>(size, 2);
      int64_t begin = shape == Shape::kRandom ? uniform(0, size - count) : (shape == Shape::kChain ? size - count : 0);
      if (shape == Shape::kChain && uniform(0, 3) == 0) count = 1, begin = size - 1;  // a family of one
      const auto made = static_cast<int64_t>(parent.size());
      parent.push_back(-1);
      for (int64_t c = begin; c < begin + count; ++c) parent[row[c]] = made;
      row[begin] = made;
      row.erase(row.begin() + begin + 1, row.begin() + begin + count);
    } while (row.size() > 1);
    status = tree_from_parents(parent, domain, &tree);
  }
  if (!status.ok()) throw std::runtime_error(status.message());
  return tree;
}

struct HsaCase {
  std::string name;
  std::vector<int64_t> lengths;  // of the sequences
  Shape shape;
  int64_t widest, heads;
  int head_size, value_size;
  Domain domain = Domain::kSet;
  bool weights = false, key_bias = false, causal = false;
  bool packed = true;  // or padded
  Memory memory = Memory::kDense;
  int levels = 1;
  int64_t key_heads = 0;  // 0: as many as heads
};
inline std::ostream& operator<<(std::ostream& out, const HsaCase& c) { return out << c.name; }

template <class S>
struct HsaData {
  using T = typename TypeOf<S>::Compute;

  explicit HsaData(const HsaCase& c, uint64_t seed = 1) : spec(c) {
    std::mt19937_64 random(seed);
    const int64_t total = std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0});
    const int64_t longest = c.lengths.empty() ? 0 : *std::max_element(c.lengths.begin(), c.lengths.end());
    const auto count = static_cast<int64_t>(c.lengths.size());
    const int64_t batch = c.packed ? 1 : count, rows = c.packed ? total : longest + 2;
    if (spec.key_heads == 0) spec.key_heads = c.heads;
    const int64_t key_heads = spec.key_heads;
    std::vector<int64_t> level_rows(c.levels, 0);  // of all sequences, one after the other
    first_row.resize(c.levels);
    for (int64_t n = 0; n < count; ++n) {
      for (int l = 0; l < c.levels; ++l) {
        first_row[l].push_back(c.packed ? level_rows[l] : 0);
        level_rows[l] += hkt_level_tokens(c.lengths[n], l);
      }
    }
    for (int64_t n = 0; n < count; ++n) {
      trees.push_back(random_tree(c.lengths[n], c.shape, c.widest, c.domain, random));
      batch_of.push_back(c.packed ? 0 : n);
      if (c.domain != Domain::kSet) places = std::max(places, trees.back().largest_family());
    }
    for (const Tree& tree : trees) views.push_back(tree.view());
    for (int l = 0; l < c.levels; ++l) {
      const int64_t at_level = l == 0 ? rows : c.packed ? level_rows[l] : hkt_level_tokens(longest, l) + 2;
      for (auto* list : {&q, &dq}) list->emplace_back(batch, c.heads, at_level, c.head_size, c.memory);
      for (auto* list : {&k, &dk}) list->emplace_back(batch, key_heads, at_level, c.head_size, c.memory);
      q[l].randomize(random), k[l].randomize(random), dq[l].fill(0), dk[l].fill(0);
    }
    for (Array<S>* array : {&v, &dv}) *array = Array<S>(batch, key_heads, rows, c.value_size, c.memory);
    for (Array<S>* array : {&out, &dout}) *array = Array<S>(batch, c.heads, rows, c.value_size, c.memory);
    for (Array<S>* array : {&v, &dout}) array->randomize(random);
    for (Array<S>* array : {&out, &dv}) array->fill(0);
    level_weights = Array<T>(1, 1, c.heads, c.levels);
    dlevel_weights = Array<T>(1, 1, c.heads, c.levels);
    level_weights.each([&](int64_t, int64_t, int64_t h, int64_t l) {  // convex, different for every head
      const double sum = c.levels * (c.levels + 1) / 2;
      level_weights(0, 0, h, l) = static_cast<T>(((l + h) % c.levels + 1) / sum);
    });
    weights = Array<T>(batch, 1, rows, 1);
    dweights = Array<T>(batch, key_heads, rows, 1);
    key_bias = Array<T>(batch, key_heads, rows, 1);
    dkey_bias = Array<T>(batch, key_heads, rows, 1);
    for (Array<T>* array : {&dweights, &dkey_bias}) array->fill(0);
    key_bias.randomize(random, 0.5);
    weights.each([&](auto... at) {  // one in five is zero
      const double u = std::uniform_real_distribution<double>(-0.5, 2)(random);
      weights(at...) = static_cast<T>(u < 0 ? 0.0 : u);
    });
    positions = Array<T>(1, c.heads, 1, places * places);
    dpositions = Array<T>(1, c.heads, 1, places * places);
    positions.randomize(random, 0.7);
    score = Array<T>(1, 1, count, c.heads);
    dscore = Array<T>(1, 1, count, c.heads);
    dscore.randomize(random);
  }

  template <class Other>
  void copy_inputs_from(const HsaData<Other>& other) {
    for (int l = 0; l < spec.levels; ++l) q[l].copy_from(other.q[l]), k[l].copy_from(other.k[l]);
    level_weights.copy_from(other.level_weights);
    v.copy_from(other.v);
    dout.copy_from(other.dout);
    weights.copy_from(other.weights);
    key_bias.copy_from(other.key_bias);
    positions.copy_from(other.positions);
    dscore.copy_from(other.dscore);
  }

  bool has_positions() const { return spec.domain != Domain::kSet; }

  HsaProblem problem(int threads = 1) const {
    HsaProblem p;
    p.dtype = TypeOf<S>::kDType;
    p.sequences = static_cast<int64_t>(trees.size());
    p.heads = spec.heads;
    p.head_size = spec.head_size;
    p.value_size = spec.value_size;
    p.trees = views.data();
    p.batch_of = batch_of.data();
    p.first_token = first_row[0].data();
    p.key_heads = spec.key_heads;
    p.levels = spec.levels;
    for (int l = 0; l < spec.levels; ++l) {
      p.first_row[l] = first_row[l].data();
      p.q[l] = q[l].const_view();
      p.k[l] = k[l].const_view();
    }
    if (spec.levels > 1) p.level_weights = const_cast<Array<T>&>(level_weights).data();
    p.v = v.const_view();
    if (spec.weights) p.weights = weights.const_view();
    if (spec.key_bias) p.key_bias = key_bias.const_view();
    if (has_positions()) {
      p.positions = const_cast<Array<T>&>(positions).data();
      p.kinds = 1;
      p.places = places;
    }
    p.causal = spec.causal;
    p.scale = 1.0 / std::sqrt(static_cast<double>(spec.head_size));
    p.threads = threads;
    return p;
  }
  HsaOutputs outputs() { return {out.view(), score.data()}; }
  HsaGradients gradients() {
    HsaGradients g;
    g.dout = dout.const_view();
    g.dscore = dscore.data();
    for (int l = 0; l < spec.levels; ++l) g.dq[l] = dq[l].view(), g.dk[l] = dk[l].view();
    if (spec.levels > 1) g.dlevel_weights = dlevel_weights.data();
    g.dv = dv.view();
    if (spec.weights) g.dweights = dweights.view();
    if (spec.key_bias) g.dkey_bias = dkey_bias.view();
    if (has_positions()) g.dpositions = dpositions.data();
    return g;
  }
  std::string trees_text() const {
    std::string all;
    for (const Tree& tree : trees) all += tree.to_string(40);
    return all;
  }

  HsaCase spec;
  std::vector<Tree> trees;
  std::vector<TreeView> views;
  std::vector<int64_t> batch_of;
  std::vector<std::vector<int64_t>> first_row;  // by level
  int64_t places = 1;
  std::vector<Array<S>> q, k, dq, dk;  // by level
  Array<S> v, out, dout, dv;
  Array<T> level_weights, dlevel_weights, weights, dweights, key_bias, dkey_bias, positions, dpositions, score, dscore;
};

// Calls f(name, got, want) for each output and gradient.
template <class Got, class Want, class F>
void each_hsa_result(const Got& got, const Want& want, F f) {
  f("out", got.out, want.out);
  f("score", got.score, want.score);
  for (int l = 0; l < got.spec.levels; ++l) f("dq", got.dq[l], want.dq[l]), f("dk", got.dk[l], want.dk[l]);
  if (got.spec.levels > 1) f("dlevel_weights", got.dlevel_weights, want.dlevel_weights);
  f("dv", got.dv, want.dv);
  if (got.spec.weights) f("dweights", got.dweights, want.dweights);
  if (got.spec.key_bias) f("dkey_bias", got.dkey_bias, want.dkey_bias);
  if (got.has_positions()) f("dpositions", got.dpositions, want.dpositions);
}

}  // namespace strata::test
