// One table of HKT problems, from which the kernel tests, the gradient checks and the abuse tests draw. A failure
// prints the case and how to run it alone.
#pragma once

#include <ostream>
#include <string>

#include "cases/array.h"
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
};

inline std::ostream& operator<<(std::ostream& out, const HktCase& c) { return out << c.name; }

inline const std::vector<HktCase>& hkt_cases() {
  static const std::vector<HktCase> cases = {
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
  return cases;
}

// The arrays of one case in storage type S. Values are drawn in double from the case's seed and rounded to S; a double
// copy of the *rounded* numbers is what the reference sees, so that only arithmetic differs.
template <class S>
struct HktData {
  using T = typename TypeOf<S>::Compute;

  explicit HktData(const HktCase& c, uint64_t seed = 1) : spec(c) {
    std::mt19937_64 random(seed);
    for (int l = 0; l < c.levels; ++l) {
      const int64_t rows = hkt_level_tokens(c.tokens, l);
      q.push_back(make(c.heads, rows, c.head_size, random));
      k.push_back(make(c.key_heads, rows, c.head_size, random));
      dq.emplace_back(c.batch, c.heads, rows, c.head_size, c.memory);
      dk.emplace_back(c.batch, c.key_heads, rows, c.head_size, c.memory);
    }
    v = make(c.key_heads, c.tokens, c.value_size, random);
    dout = make(c.heads, c.tokens, c.value_size, random);
    out = Array<S>(c.batch, c.heads, c.tokens, c.value_size, c.memory);
    dv = Array<S>(c.batch, c.key_heads, c.tokens, c.value_size, c.memory);
    lse = Array<T>(1, c.batch, c.heads, c.tokens);
    dlse = Array<T>(1, c.batch, c.heads, c.tokens);
    dlse.randomize(random, 0.5);
    weights = Array<T>(1, 1, c.heads, c.levels);
    dweights = Array<T>(1, 1, c.heads, c.levels);
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
    if (has_bias()) bias.copy_from(other.bias);
  }

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
      p.q[l] = q[l].const_view();
      p.k[l] = k[l].const_view();
    }
    p.v = v.const_view();
    p.weights = const_cast<Array<T>&>(weights).data();
    p.lengths = spec.lengths.empty() ? nullptr : spec.lengths.data();
    if (has_bias()) p.bias = broadcast(const_cast<Array<S>&>(bias));
    p.causal = spec.causal;
    p.scale = 1.0 / std::sqrt(static_cast<double>(spec.head_size));
    p.threads = threads;
    return p;
  }
  HktOutputs outputs() { return {out.view(), lse.data()}; }
  HktGradients gradients() {
    HktGradients g;
    g.dout = dout.const_view();
    g.dlse = dlse.data();
    for (int l = 0; l < spec.levels; ++l) {
      g.dq[l] = dq[l].view();
      g.dk[l] = dk[l].view();
    }
    g.dv = dv.view();
    g.dweights = dweights.data();
    if (has_bias()) g.dbias = broadcast(dbias);
    return g;
  }

  HktCase spec;
  std::vector<Array<S>> q, k, dq, dk;
  Array<S> v, dv, out, dout, bias, dbias;
  Array<T> weights, dweights, lse, dlse;

 private:
  Array<S> make(int64_t heads, int64_t tokens, int64_t channels, std::mt19937_64& random) {
    Array<S> array(spec.batch, heads, tokens, channels, spec.memory);
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
    bias = Array<S>(batch, heads, spec.tokens, spec.tokens);
    dbias = Array<S>(batch, heads, spec.tokens, spec.tokens);
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
