// Problems of streaming HSA, and the table of cases that the CPU and the GPU share.
#pragma once

#include "cases/array.h"
#include "cases/packed_rows.h"
#include "strata/hsa_stream.h"

namespace strata::test {

struct StreamCase {
  std::string name;
  int64_t batch, heads, tokens;
  int branching, head_size, value_size;
  bool weights = false, key_bias = false, positions = false;
  Memory memory = Memory::kDense;
  int near = 1, levels = 1;
  int64_t key_heads = 0;  // 0: as many as heads
  bool both_sides = false;
  std::vector<int64_t> lengths = {};  // of packed sequences, `batch` of them; `tokens` is the longest
  double dropout = 0;

  bool is_packed() const { return !lengths.empty(); }
};
inline std::ostream& operator<<(std::ostream& out, const StreamCase& c) { return out << c.name; }

template <class S>
struct StreamData {
  using T = typename TypeOf<S>::Compute;
  explicit StreamData(const StreamCase& c) : spec(c) {
    std::mt19937_64 random(4);
    if (spec.key_heads == 0) spec.key_heads = c.heads;
    const int64_t key_heads = spec.key_heads, parts = c.is_packed() ? 1 : c.batch;
    if (c.is_packed()) packed = PackedRows(c.lengths, c.levels);
    auto rows_of = [&](int l) { return c.is_packed() ? packed.totals[l] : hkt_level_tokens(c.tokens, l); };
    const int64_t tokens = rows_of(0);
    for (int l = 0; l < c.levels; ++l) {
      const int64_t rows = rows_of(l);
      for (auto* list : {&q, &dq}) list->emplace_back(parts, c.heads, rows, c.head_size, c.memory);
      for (auto* list : {&k, &dk}) list->emplace_back(parts, key_heads, rows, c.head_size, c.memory);
      q[l].randomize(random), k[l].randomize(random);
    }
    for (Array<S>* array : {&v, &dv}) *array = Array<S>(parts, key_heads, tokens, c.value_size, c.memory);
    for (Array<S>* array : {&out, &dout}) *array = Array<S>(parts, c.heads, tokens, c.value_size, c.memory);
    for (Array<S>* array : {&v, &dout}) array->randomize(random);
    for (Array<T>* array : {&lse, &dlse}) *array = Array<T>(1, parts, c.heads, tokens);
    dlse.randomize(random, 0.3);
    weights = Array<T>(parts, 1, tokens, 1);
    dweights = Array<T>(parts, key_heads, tokens, 1);
    weights.each([&](auto... at) {
      const double u = std::uniform_real_distribution<double>(-0.5, 2)(random);
      weights(at...) = static_cast<T>(u < 0 ? 0.0 : u);
    });
    for (Array<T>* array : {&key_bias, &dkey_bias}) *array = Array<T>(parts, key_heads, tokens, 1);
    key_bias.randomize(random, 0.5);
    for (Array<T>* array : {&level_weights, &dlevel_weights}) *array = Array<T>(1, 1, c.heads, c.levels);
    for (int64_t h = 0; h < c.heads; ++h) {
      double rest = 1;  // convex, different for every head
      for (int l = 0; l < c.levels; ++l) {
        const double a = l + 1 == c.levels ? rest : rest * std::uniform_real_distribution<double>(0.2, 0.7)(random);
        level_weights(0, 0, h, l) = static_cast<T>(a);
        rest -= a;
      }
    }
    heights = hsa_stream_heights(c.tokens, c.branching);
    const int64_t table = hsa_stream_distances(c.near, c.both_sides) * c.branching * c.branching;
    for (Array<T>* array : {&positions, &dpositions}) *array = Array<T>(1, c.heads, heights, table);
    positions.randomize(random, 0.5);
  }
  template <class Other>
  void copy_inputs_from(const StreamData<Other>& o) {
    for (int l = 0; l < spec.levels; ++l) q[l].copy_from(o.q[l]), k[l].copy_from(o.k[l]);
    level_weights.copy_from(o.level_weights), v.copy_from(o.v), dout.copy_from(o.dout), dlse.copy_from(o.dlse);
    weights.copy_from(o.weights), key_bias.copy_from(o.key_bias), positions.copy_from(o.positions);
  }
  HsaStreamProblem problem(int threads = 1) {
    HsaStreamProblem p;
    p.dtype = TypeOf<S>::kDType;
    p.batch = spec.batch, p.heads = spec.heads, p.tokens = spec.tokens, p.branching = spec.branching;
    p.head_size = spec.head_size, p.value_size = spec.value_size;
    p.key_heads = spec.key_heads, p.near = spec.near, p.levels = spec.levels, p.both_sides = spec.both_sides;
    for (int l = 0; l < spec.levels; ++l) p.q[l] = packed_view(q[l], l), p.k[l] = packed_view(k[l], l);
    if (spec.levels > 1) p.level_weights = level_weights.data();
    p.v = packed_view(v);
    if (spec.weights) p.weights = packed_view(weights);
    if (spec.key_bias) p.key_bias = packed_view(key_bias);
    if (spec.is_packed()) p.lengths = spec.lengths.data(), p.packed_rows = packed.totals[0];
    p.dropout = {spec.dropout, dropout_state};
    if (spec.positions) p.positions = positions.data(), p.heights = heights;
    p.scale = 0.7;
    p.threads = threads;
    return p;
  }
  HsaStreamOutputs outputs() { return {packed_view(out), lse.data()}; }
  HsaStreamGradients gradients() {
    HsaStreamGradients g;
    g.dout = packed_view(dout), g.dlse = dlse.data(), g.dv = packed_view(dv);
    for (int l = 0; l < spec.levels; ++l) g.dq[l] = packed_view(dq[l], l), g.dk[l] = packed_view(dk[l], l);
    if (spec.levels > 1) g.dlevel_weights = dlevel_weights.data();
    if (spec.weights) g.dweights = packed_view(dweights);
    if (spec.key_bias) g.dkey_bias = packed_view(dkey_bias);
    if (spec.positions) g.dpositions = dpositions.data();
    return g;
  }
  template <class Want, class F>
  void each_result(const Want& want, F f) const {
    f("out", out, want.out), f("lse", lse, want.lse), f("dv", dv, want.dv);
    for (int l = 0; l < spec.levels; ++l) f("dq", dq[l], want.dq[l]), f("dk", dk[l], want.dk[l]);
    if (spec.levels > 1) f("dlevel_weights", dlevel_weights, want.dlevel_weights);
    if (spec.weights) f("dweights", dweights, want.dweights);
    if (spec.key_bias) f("dkey_bias", dkey_bias, want.dkey_bias);
    if (spec.positions) f("dpositions", dpositions, want.dpositions);
  }
  template <class Any>
  View packed_view(Any& array, int l = 0) {
    View view = array.view();
    view.begins = packed.data(l);
    return view;
  }

  StreamCase spec;
  PackedRows packed;
  int64_t dropout_state[2] = {99, 7};
  int64_t heights;
  std::vector<Array<S>> q, k, dq, dk;  // by level
  Array<S> v, out, dout, dv;
  Array<T> level_weights, dlevel_weights, lse, dlse, weights, dweights, key_bias, dkey_bias, positions, dpositions;
};

// Of streaming HSA: one level, near = 1.
inline std::vector<StreamCase> stream_cases() {
  return {{"one_token", 1, 1, 1, 2, 4, 4},
          {"binary", 1, 2, 37, 2, 4, 3, true, true, true},
          {"b16", 1, 2, 300, 16, 16, 16},
          {"b5", 2, 1, 131, 5, 8, 8, true, true, true},
          {"b64", 1, 1, 200, 64, 8, 8, false, false, true},
          {"b3_long", 1, 1, 700, 3, 8, 16, true, false, true},
          {"token_major", 2, 2, 90, 4, 16, 16, false, true, false, Memory::kTokenMajor},
          {"spread", 1, 2, 90, 7, 5, 6, true, false, true, Memory::kSpread}};
}

// Of streaming Strata attention: neighbours, levels, grouped heads, both sides.
inline std::vector<StreamCase> strata_stream_cases() {
  const Memory dense = Memory::kDense;
  return {{"near2", 1, 2, 300, 16, 16, 16, false, false, false, dense, 2},
          {"near2_all_terms", 2, 2, 131, 5, 8, 6, true, true, true, dense, 2},
          {"near3_binary", 1, 2, 77, 2, 4, 3, true, true, true, dense, 3},
          {"near_without_end", 1, 1, 90, 4, 8, 8, false, false, true, dense, 1000},
          {"levels3", 1, 2, 300, 16, 16, 16, false, false, false, dense, 1, 3},
          {"levels3_near2", 1, 2, 300, 16, 16, 16, false, true, true, dense, 2, 3},
          {"levels8", 1, 1, 700, 16, 8, 8, true, false, false, dense, 2, 8},
          {"levels_cut_by_nodes", 2, 2, 140, 5, 8, 8, true, true, true, dense, 2, 4},
          {"levels_b3", 1, 1, 211, 3, 5, 7, true, false, true, dense, 3, 5},
          {"grouped_heads", 2, 6, 100, 4, 8, 8, true, true, true, dense, 2, 2, 2},
          {"one_key_head", 1, 4, 130, 16, 16, 16, false, false, false, dense, 2, 3, 1},
          {"levels_token_major", 2, 2, 90, 8, 16, 16, false, true, false, Memory::kTokenMajor, 2, 3},
          {"levels_spread", 1, 2, 90, 7, 5, 6, true, false, true, Memory::kSpread, 2, 3},
          {"both_sides", 1, 2, 300, 16, 16, 16, false, false, false, dense, 2, 1, 0, true},
          {"both_sides_near1", 1, 1, 100, 4, 8, 8, true, true, true, dense, 1, 1, 0, true},
          {"both_sides_levels", 2, 4, 149, 5, 8, 8, true, true, true, dense, 2, 3, 2, true},
          {"both_sides_b16_levels", 1, 1, 333, 16, 16, 16, false, false, true, dense, 3, 4, 0, true},
          {"both_sides_binary", 1, 1, 67, 2, 4, 4, true, false, true, dense, 2, 5, 0, true}};
}

// Packed sequences, and dropout.
inline std::vector<StreamCase> stream_argument_cases() {
  const Memory dense = Memory::kDense;
  return {{"packed", 4, 2, 300, 16, 16, 16, false, false, false, dense, 2, 1, 0, false, {300, 1, 0, 75}},
          {"packed_all_terms", 4, 4, 131, 5, 8, 6, true, true, true, dense, 2, 3, 2, false, {20, 131, 64, 5}},
          {"packed_both_sides", 3, 2, 149, 4, 8, 8, true, true, true, dense, 2, 3, 0, true, {149, 3, 70}},
          {"packed_b16_both_sides", 3, 2, 400, 16, 16, 16, false, false, false, dense, 2, 4, 0, true, {33, 400, 16}},
          {"dropout", 1, 2, 300, 16, 16, 16, false, false, false, dense, 2, 1, 0, false, {}, 0.2},
          {"dropout_all_terms", 2, 4, 131, 5, 8, 6, true, true, true, dense, 2, 3, 2, false, {}, 0.5},
          {"dropout_packed", 3, 2, 90, 4, 8, 8, false, false, true, dense, 1, 2, 0, true, {90, 0, 41}, 0.1}};
}

}  // namespace strata::test
