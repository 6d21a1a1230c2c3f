// One table of HKT problems, from which the kernel tests, the gradient checks and the abuse tests draw. A failure
// prints the case and how to run it alone.
#pragma once

#include <ostream>
#include <string>

#include "cases/array.h"
#include "cases/packed_rows.h"
#include "strata/hkt.h"

namespace strata::test {

enum class BiasKind { kNone, kFull, kPerHead, kShared, kMasking };  // kMasking: shared, with -inf entries and rows

struct HktCase {
  std::string name;
  int64_t batch, heads, key_heads, tokens;
  int levels, head_size, value_size;
  bool causal = false;
  std::vector<int64_t> lengths = {};
  BiasKind bias = BiasKind::kNone;
  Memory memory = Memory::kDense;
  int64_t key_tokens = -1;  // cross-attention
  std::vector<int64_t> key_lengths = {};
  int64_t window_left = -1, window_right = -1;
  bool alibi = false;
  double dropout = 0;
  bool packed = false;  // lengths (and key_lengths) are those of the sequences

  bool is_cross() const { return key_tokens >= 0; }
  int64_t keys() const { return is_cross() ? key_tokens : tokens; }
  const std::vector<int64_t>& lengths_of_keys() const { return is_cross() ? key_lengths : lengths; }
};

// A case with some of the fields that come after `memory`.
template <class Change>
HktCase changed(HktCase c, const Change& change) {
  change(c);
  return c;
}

inline std::ostream& operator<<(std::ostream& out, const HktCase& c) { return out << c.name; }

// What today's models ask for: windows, other keys than queries, packed sequences, ALiBi, dropout, and some of them
// together.
inline std::vector<HktCase> hkt_argument_cases() {
  auto window = [](int64_t left, int64_t right) {
    return [=](HktCase& c) {
      c.window_left = left;
      c.window_right = right;
    };
  };
  auto cross = [](int64_t keys, const std::vector<int64_t>& lengths = {}) {
    return [=](HktCase& c) {
      c.key_tokens = keys;
      c.key_lengths = lengths;
    };
  };
  auto packed = [](HktCase& c) { c.packed = true; };
  std::vector<HktCase> cases = {
      changed({"window_left", 1, 2, 2, 300, 3, 16, 16, true}, window(70, -1)),
      changed({"window_both", 2, 2, 1, 210, 3, 16, 16, false, {210, 100}}, window(5, 67)),
      changed({"window_right", 1, 2, 2, 140, 2, 8, 8}, window(-1, 3)),
      changed({"window_self", 1, 1, 1, 75, 4, 8, 8}, window(0, 0)),
      changed({"window_l8", 1, 1, 1, 420, 8, 8, 8, true}, window(40, 0)),
      changed({"window_bias", 1, 2, 2, 90, 3, 8, 8, false, {}, BiasKind::kFull}, window(9, 20)),
      changed({"cross_more_keys", 2, 2, 2, 50, 3, 16, 16}, cross(131)),
      changed({"cross_fewer_keys", 2, 4, 2, 140, 3, 16, 24, false, {140, 65}}, cross(37, {37, 0})),
      changed({"cross_causal", 2, 2, 2, 131, 2, 8, 8, true, {131, 64}}, cross(70, {70, 66})),
      changed({"cross_one_query", 1, 2, 1, 1, 4, 8, 8}, cross(100)),
      changed({"cross_no_keys", 1, 2, 1, 5, 2, 8, 8}, cross(0)),
      changed({"cross_no_queries", 1, 2, 1, 0, 2, 8, 8}, cross(9)),
      changed({"cross_bias", 2, 2, 2, 66, 2, 8, 8, false, {}, BiasKind::kMasking}, cross(71)),
      changed({"packed", 6, 2, 2, 90, 3, 16, 16, false, {90, 1, 0, 65, 64, 7}}, packed),
      changed({"packed_causal", 5, 4, 2, 131, 4, 16, 16, true, {64, 131, 0, 7, 33}}, packed),
      changed({"packed_token_major", 3, 3, 3, 77, 3, 24, 24, true, {5, 77, 20}, BiasKind::kNone, Memory::kTokenMajor},
              packed),
      changed({"packed_alone", 1, 1, 1, 700, 3, 8, 8, true, {700}}, packed),
      changed({"alibi", 2, 4, 2, 150, 3, 16, 16, true, {150, 70}}, [](HktCase& c) { c.alibi = true; }),
      changed({"alibi_full", 1, 2, 2, 70, 1, 16, 16}, [](HktCase& c) { c.alibi = true; }),
      changed({"dropout", 2, 2, 2, 140, 3, 16, 16, false, {140, 33}}, [](HktCase& c) { c.dropout = 0.2; }),
      changed({"dropout_causal", 1, 4, 2, 131, 1, 16, 16, true}, [](HktCase& c) { c.dropout = 0.5; }),
      changed({"all_packed", 4, 4, 2, 150, 3, 16, 16, true, {150, 3, 70, 64}},
              [](HktCase& c) {
                c.packed = c.alibi = true;
                c.dropout = 0.1;
                c.window_left = 50;
                c.key_tokens = 100;
                c.key_lengths = {100, 0, 77, 64};
              }),
      changed({"all_padded", 2, 2, 1, 130, 3, 8, 8, false, {130, 40}, BiasKind::kFull},
              [](HktCase& c) {
                c.alibi = true;
                c.dropout = 0.3;
                c.window_left = 64;
                c.window_right = 30;
                c.key_tokens = 90;
                c.key_lengths = {90, 11};
              }),
  };
  return cases;
}

inline std::vector<HktCase> hkt_basic_cases() {
  return {
      {"one_token", 1, 1, 1, 1, 1, 8, 8},
      {"one_token_deep", 2, 1, 1, 1, 8, 8, 8, true},
      {"two_tokens", 1, 2, 2, 2, 2, 4, 4, true},
      {"three_tokens_l3", 1, 2, 1, 3, 3, 5, 3},
      {"size_one_heads", 1, 1, 1, 9, 2, 1, 1, true},
      {"flat_tile", 1, 2, 2, 64, 1, 16, 16},
      {"flat_prime", 2, 2, 2, 131, 1, 33, 17, true},
      {"l2_below_tile", 1, 2, 2, 63, 2, 16, 16, true},
      {"l2_above_tile", 1, 2, 2, 65, 2, 16, 16, true},
      {"l3_two_tiles", 1, 2, 2, 128, 3, 32, 32},
      {"l3_odd", 1, 1, 1, 129, 3, 64, 64, true},
      {"l4_prime", 1, 1, 1, 197, 4, 20, 12},
      {"l8_wide_blocks", 1, 1, 1, 300, 8, 8, 8, true},
      {"l8_wide_blocks_full", 1, 2, 1, 260, 8, 8, 8},
      {"l7_long", 1, 1, 1, 517, 7, 4, 4, true},
      {"grouped_heads", 2, 6, 2, 70, 3, 12, 20, true},
      {"lengths", 4, 2, 2, 90, 3, 16, 16, false, {90, 1, 0, 65}},
      {"lengths_causal", 4, 2, 1, 90, 3, 16, 16, true, {64, 89, 0, 7}},
      {"lengths_many_chunks", 1, 1, 1, 700, 3, 8, 8, true, {449}},
      {"bias_full", 2, 2, 2, 67, 3, 8, 8, false, {}, BiasKind::kFull},
      {"bias_per_head", 2, 2, 1, 67, 2, 8, 8, true, {}, BiasKind::kPerHead},
      {"bias_shared", 3, 2, 2, 70, 3, 8, 8, true, {70, 33, 66}, BiasKind::kShared},
      {"bias_masking", 2, 2, 2, 66, 3, 8, 8, false, {66, 40}, BiasKind::kMasking},
      {"token_major", 2, 3, 3, 77, 3, 24, 24, true, {}, BiasKind::kNone, Memory::kTokenMajor},
      {"spread_channels", 2, 2, 2, 71, 3, 10, 6, true, {71, 50}, BiasKind::kPerHead, Memory::kSpread},
      {"head_size_80", 1, 1, 1, 72, 3, 80, 96},
      {"head_size_256", 1, 1, 1, 66, 2, 256, 256, true},
  };
}

inline const std::vector<HktCase>& hkt_cases() {
  static const std::vector<HktCase> cases = [] {
    std::vector<HktCase> all = hkt_basic_cases();
    for (const HktCase& c : hkt_argument_cases()) all.push_back(c);
    return all;
  }();
  return cases;
}

// The arrays of one case in storage type S. Values are drawn in double from the case's seed and rounded to S; a double
// copy of the *rounded* numbers is what the reference sees, so that only arithmetic differs.
template <class S>
struct HktData {
  using T = typename TypeOf<S>::Compute;

  explicit HktData(const HktCase& c, uint64_t seed = 1) : spec(c) {
    std::mt19937_64 random(seed);
    if (c.packed) {
      queries = PackedRows(c.lengths, c.levels);
      keys = PackedRows(c.lengths_of_keys(), c.levels);
    }
    for (int l = 0; l < c.levels; ++l) {
      q.push_back(make(c.heads, query_rows(l), c.head_size, random));
      k.push_back(make(c.key_heads, key_rows(l), c.head_size, random));
      dq.emplace_back(parts(), c.heads, query_rows(l), c.head_size, c.memory);
      dk.emplace_back(parts(), c.key_heads, key_rows(l), c.head_size, c.memory);
    }
    v = make(c.key_heads, key_rows(0), c.value_size, random);
    dout = make(c.heads, query_rows(0), c.value_size, random);
    out = Array<S>(parts(), c.heads, query_rows(0), c.value_size, c.memory);
    dv = Array<S>(parts(), c.key_heads, key_rows(0), c.value_size, c.memory);
    lse = Array<T>(1, parts(), c.heads, query_rows(0));
    dlse = Array<T>(1, parts(), c.heads, query_rows(0));
    dlse.randomize(random, 0.5);
    weights = Array<T>(1, 1, c.heads, c.levels);
    dweights = Array<T>(1, 1, c.heads, c.levels);
    slopes = Array<T>(1, 1, 1, c.heads);
    for (int64_t h = 0; h < c.heads; ++h) slopes(0, 0, 0, h) = static_cast<T>(std::exp2(-2.0 - static_cast<double>(h)));
    make_weights(random);
    make_bias(random);
  }

  // The same numbers in another storage type.
  template <class Other>
  void copy_inputs_from(const HktData<Other>& other) {
    for (size_t l = 0; l < q.size(); ++l) {
      q[l].copy_from(other.q[l]);
      k[l].copy_from(other.k[l]);
    }
    v.copy_from(other.v);
    dout.copy_from(other.dout);
    dlse.copy_from(other.dlse);
    weights.copy_from(other.weights);
    slopes.copy_from(other.slopes);
    if (has_bias()) bias.copy_from(other.bias);
  }

  int64_t parts() const { return spec.packed ? 1 : spec.batch; }
  int64_t query_rows(int l) const { return spec.packed ? queries.totals[l] : hkt_level_tokens(spec.tokens, l); }
  int64_t key_rows(int l) const { return spec.packed ? keys.totals[l] : hkt_level_tokens(spec.keys(), l); }

  bool has_bias() const { return spec.bias != BiasKind::kNone; }

  HktProblem problem(int threads = 1) const {
    HktProblem p;
    p.dtype = TypeOf<S>::kDType;
    p.batch = spec.batch;
    p.heads = spec.heads;
    p.key_heads = spec.key_heads;
    p.tokens = spec.tokens;
    p.levels = spec.levels;
    p.head_size = spec.head_size;
    p.value_size = spec.value_size;
    for (int l = 0; l < spec.levels; ++l) {
      p.q[l] = packed_view(q[l].const_view(), queries, l);
      p.k[l] = packed_view(k[l].const_view(), keys, l);
    }
    p.v = packed_view(v.const_view(), keys, 0);
    p.weights = const_cast<Array<T>&>(weights).data();
    p.lengths = spec.lengths.empty() ? nullptr : spec.lengths.data();
    p.key_tokens = spec.key_tokens;
    p.key_lengths = spec.key_lengths.empty() ? nullptr : spec.key_lengths.data();
    p.window_left = spec.window_left;
    p.window_right = spec.window_right;
    if (spec.alibi) p.slopes = const_cast<Array<T>&>(slopes).data();
    p.dropout = {spec.dropout, dropout_state};
    if (spec.packed) p.packed_rows = query_rows(0);
    if (spec.packed && spec.is_cross()) p.packed_key_rows = key_rows(0);
    if (has_bias()) p.bias = broadcast(const_cast<Array<S>&>(bias));
    p.causal = spec.causal;
    p.scale = 1.0 / std::sqrt(static_cast<double>(spec.head_size));
    p.threads = threads;
    return p;
  }
  HktOutputs outputs() { return {packed_view(out.view(), queries, 0), lse.data()}; }
  HktGradients gradients() {
    HktGradients g;
    g.dout = packed_view(dout.const_view(), queries, 0);
    g.dlse = dlse.data();
    for (int l = 0; l < spec.levels; ++l) {
      g.dq[l] = packed_view(dq[l].view(), queries, l);
      g.dk[l] = packed_view(dk[l].view(), keys, l);
    }
    g.dv = packed_view(dv.view(), keys, 0);
    g.dweights = dweights.data();
    if (has_bias()) g.dbias = broadcast(dbias);
    return g;
  }

  HktCase spec;
  std::vector<Array<S>> q, k, dq, dk;
  Array<S> v, dv, out, dout, bias, dbias;
  Array<T> weights, dweights, lse, dlse, slopes;
  PackedRows queries, keys;
  int64_t dropout_state[2] = {1234567890123, 42};

 private:
  template <class AnyView>
  static AnyView packed_view(AnyView view, const PackedRows& rows, int l) {
    view.begins = rows.data(l);
    return view;
  }
  Array<S> make(int64_t heads, int64_t tokens, int64_t channels, std::mt19937_64& random) {
    Array<S> array(parts(), heads, tokens, channels, spec.memory);
    array.randomize(random);
    return array;
  }
  void make_weights(std::mt19937_64& random) {
    weights.randomize(random);
    for (int64_t h = 0; h < spec.heads; ++h) {
      double sum = 0;
      for (int l = 0; l < spec.levels; ++l) sum += std::exp(weights(0, 0, h, l));
      for (int l = 0; l < spec.levels; ++l) weights(0, 0, h, l) = static_cast<T>(std::exp(weights(0, 0, h, l)) / sum);
    }
  }
  void make_bias(std::mt19937_64& random) {
    if (!has_bias()) return;
    const int64_t batch = spec.bias == BiasKind::kFull ? spec.batch : 1;
    const int64_t heads = spec.bias == BiasKind::kFull || spec.bias == BiasKind::kPerHead ? spec.heads : 1;
    bias = Array<S>(batch, heads, spec.tokens, spec.keys());
    dbias = Array<S>(batch, heads, spec.tokens, spec.keys());
    bias.randomize(random);
    if (spec.bias != BiasKind::kMasking) return;
    bias.each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
      if (i == 5 || (i + j) % 3 == 0) bias(b, h, i, j) = S(-std::numeric_limits<double>::infinity());
    });
  }
  View broadcast(Array<S>& array) const {
    View view = array.view();
    if (array.shape()[0] == 1) view.stride[0] = 0;
    if (array.shape()[1] == 1) view.stride[1] = 0;
    return view;
  }
};

}  // namespace strata::test
