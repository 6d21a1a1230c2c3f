// One table of decoding steps of HKT, for the tests of every device: the cache of a case, and what the reference gives.
#pragma once

#include <algorithm>

#include "cases/hkt_case.h"

namespace strata::test {

struct DecodeCase {
  std::string name;
  int64_t heads, key_heads;
  int levels, head_size, value_size;
  std::vector<int64_t> lengths;
  int64_t window = -1;
  int64_t history = 0;  // more rows of the rings than a step needs
  Memory memory = Memory::kDense;
};
inline std::ostream& operator<<(std::ostream& out, const DecodeCase& c) { return out << c.name; }

inline std::vector<DecodeCase> hkt_decode_cases() {
  std::vector<DecodeCase> cases = {
      {"one_token", 1, 1, 1, 8, 8, {1}},
      {"no_tokens", 2, 1, 3, 16, 16, {0, 5, 0}},
      {"flat", 2, 2, 1, 64, 64, {700, 33}},
      {"three_levels", 4, 4, 3, 64, 64, {1025, 1, 512}},
      {"grouped", 8, 2, 3, 64, 64, {300, 77}},
      {"grouped_odd", 6, 2, 4, 12, 10, {83, 1, 46}},
      {"one_key_head", 9, 1, 2, 32, 64, {131}},
      {"wide", 2, 2, 3, 128, 128, {517, 200}},
      {"wide_grouped", 4, 1, 5, 128, 96, {517}},
      {"widest", 2, 1, 3, 256, 256, {150, 9}},
      {"narrow", 1, 1, 2, 1, 1, {97}},
      {"values_wider", 2, 2, 3, 16, 200, {97}},
      {"token_major", 3, 3, 3, 64, 64, {90, 257}, -1, 0, Memory::kTokenMajor},
      {"spread", 2, 2, 3, 10, 6, {90, 50}, -1, 0, Memory::kSpread},
      {"window", 2, 2, 3, 64, 64, {300, 5, 64}, 40, 0},
      {"window_of_itself", 2, 1, 4, 16, 16, {77, 1}, 0, 0},
      {"window_history", 4, 2, 3, 64, 64, {999, 130}, 127, 9},
      {"window_short", 1, 1, 2, 8, 8, {20}, 2, 1},
      {"window_deep", 2, 2, 8, 32, 32, {1000, 300}, 300, 33},
      {"window_longer", 2, 2, 3, 64, 64, {50, 20}, 500, 3},
      {"long", 2, 1, 3, 64, 64, {3000, 2049, 31}},
  };
  for (int levels = 1; levels <= kMaxLevels; ++levels)
    cases.push_back({"levels_" + std::to_string(levels), 2, 1, levels, 32, 32, {601, 256, 255, 3}});
  return cases;
}

// The arrays of a case. Rows that no token has written are NaN.
template <class S>
struct DecodeData {
  using T = typename TypeOf<S>::Compute;

  explicit DecodeData(const DecodeCase& c) : spec(c), all(whole(c)) {
    out = Array<S>(batch(), c.heads, 1, c.value_size, c.memory);
    for (int l = 0; l < c.levels; ++l) {
      const int64_t ring = l == 0 ? c.window + c.history + 1 : ((c.window + c.history) >> l) + 2;
      const int64_t slots = c.window >= 0 ? ring : hkt_level_tokens(all.spec.tokens, l) + 3;
      q.push_back(in_slots(all.q[l], l, 1 + ((c.history + (1 << l) - 1) >> l)));
      k.push_back(in_slots(all.k[l], l, slots));
      if (l == 0) v = in_slots(all.v, 0, slots);
    }
  }

  HktDecode step() {
    HktDecode d;
    d.dtype = TypeOf<S>::kDType;
    d.batch = batch(), d.heads = spec.heads, d.key_heads = spec.key_heads, d.levels = spec.levels;
    d.head_size = spec.head_size, d.value_size = spec.value_size;
    d.scale = all.problem().scale;
    d.window = spec.window;
    d.weights = all.weights.data();
    d.lengths = spec.lengths.data();
    for (int l = 0; l < spec.levels; ++l) {
      d.q[l] = q[l].const_view(), d.query_slots[l] = q[l].shape()[2];
      d.k[l] = k[l].const_view(), d.key_slots[l] = k[l].shape()[2];
    }
    d.v = v.const_view(), d.value_slots = v.shape()[2];
    d.out = out.view();
    return d;
  }

  // The newest row by its definition, in double; zeros for sequences of no tokens.
  Array<double> expected() const {
    Array<double> rows(batch(), spec.heads, 1, spec.value_size);
    rows.fill(0.0);
    for (int64_t b = 0; b < batch(); ++b)
      for (int64_t h = 0; h < spec.heads; ++h) add_row(b, h, rows);
    return rows;
  }

  int64_t batch() const { return static_cast<int64_t>(spec.lengths.size()); }

  DecodeCase spec;
  HktData<S> all;  // of all tokens
  std::vector<Array<S>> q, k;
  Array<S> v, out;

 private:
  void add_row(int64_t b, int64_t h, Array<double>& rows) const {
    const int64_t i = spec.lengths[b] - 1, key_head = h / (spec.heads / spec.key_heads);
    const int64_t first = spec.window < 0 ? 0 : std::max<int64_t>(0, i - spec.window);
    std::vector<double> scores;
    for (int64_t j = first; j <= i; ++j) {
      double score = 0;
      for (int l = 0; l < spec.levels; ++l)
        for (int c = 0; c < spec.head_size; ++c)
          score += all.weights(0, 0, h, l) * all.q[l](b, h, i >> l, c) * all.k[l](b, key_head, j >> l, c);
      scores.push_back(all.problem().scale * score);
    }
    double sum = 0;
    const double peak = scores.empty() ? 0.0 : *std::max_element(scores.begin(), scores.end());
    for (double& score : scores) sum += score = std::exp(score - peak);
    for (int64_t j = first; j <= i; ++j)
      for (int c = 0; c < spec.value_size; ++c) rows(b, h, 0, c) += scores[j - first] / sum * all.v(b, key_head, j, c);
  }
  static HktCase whole(const DecodeCase& c) {
    const int64_t longest = std::max<int64_t>(1, *std::max_element(c.lengths.begin(), c.lengths.end()));
    HktCase all{c.name,      static_cast<int64_t>(c.lengths.size()),
                c.heads,     c.key_heads,
                longest,     c.levels,
                c.head_size, c.value_size,
                true,        c.lengths};
    all.window_left = c.window;
    return all;
  }
  Array<S> in_slots(const Array<S>& rows, int level, int64_t slots) const {
    Array<S> ring(batch(), rows.shape()[1], slots, rows.shape()[3], spec.memory);
    rows.each([&](int64_t b, int64_t h, int64_t r, int64_t c) {
      if (r << level < spec.lengths[b]) ring(b, h, r % slots, c) = S(rows(b, h, r, c));
    });
    return ring;
  }
};

}  // namespace strata::test
