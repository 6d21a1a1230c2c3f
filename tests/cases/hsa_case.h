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
    int64_t first = 0;
    for (int64_t n = 0; n < count; ++n) {
      trees.push_back(random_tree(c.lengths[n], c.shape, c.widest, c.domain, random));
      batch_of.push_back(c.packed ? 0 : n);
      first_token.push_back(c.packed ? first : 0);
      first += c.lengths[n];
      if (c.domain != Domain::kSet) places = std::max(places, trees.back().largest_family());
    }
    for (const Tree& tree : trees) views.push_back(tree.view());
    auto make = [&](int64_t heads, int64_t channels) { return Array<S>(batch, heads, rows, channels, c.memory); };
    for (Array<S>* array : {&q, &k, &dq, &dk}) *array = make(c.heads, c.head_size);
    for (Array<S>* array : {&v, &dv, &out, &dout}) *array = make(c.heads, c.value_size);
    for (Array<S>* array : {&q, &k, &v, &dout}) array->randomize(random);
    for (Array<S>* array : {&out, &dq, &dk, &dv}) array->fill(0);
    weights = Array<T>(batch, 1, rows, 1);
    dweights = Array<T>(batch, c.heads, rows, 1);
    key_bias = Array<T>(batch, c.heads, rows, 1);
    dkey_bias = Array<T>(batch, c.heads, rows, 1);
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
    q.copy_from(other.q);
    k.copy_from(other.k);
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
    p.first_token = first_token.data();
    p.q = q.const_view();
    p.k = k.const_view();
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
    g.dq = dq.view();
    g.dk = dk.view();
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
  std::vector<int64_t> batch_of, first_token;
  int64_t places = 1;
  Array<S> q, k, v, out, dout, dq, dk, dv;
  Array<T> weights, dweights, key_bias, dkey_bias, positions, dpositions, score, dscore;
};

// Calls f(name, got, want) for each output and gradient.
template <class Got, class Want, class F>
void each_hsa_result(const Got& got, const Want& want, F f) {
  f("out", got.out, want.out);
  f("score", got.score, want.score);
  f("dq", got.dq, want.dq);
  f("dk", got.dk, want.dk);
  f("dv", got.dv, want.dv);
  if (got.spec.weights) f("dweights", got.dweights, want.dweights);
  if (got.spec.key_bias) f("dkey_bias", got.dkey_bias, want.dkey_bias);
  if (got.has_positions()) f("dpositions", got.dpositions, want.dpositions);
}

}  // namespace strata::test
