// New tokens, one by one, for the tests of every device: their rows for a cache (HktAppend), and those of a pyramid
// (PyramidStep) beside what the filters give for all tokens.
#pragma once

#include "cases/hkt_decode_case.h"
#include "strata/pyramid.h"

namespace strata::test {

// Empties the rings of `data` and gives the rows that a token of one sequence adds to them.
template <class S>
struct RowsOfTokens {
  explicit RowsOfTokens(DecodeData<S>& data) {
    const double nothing = std::numeric_limits<double>::quiet_NaN();
    for (auto* rings : {&data.q, &data.k})
      for (Array<S>& ring : *rings) ring.fill(nothing);
    data.v.fill(nothing);
  }
  // The levels of which no row begins have rows of another token, which must not be used.
  HktAppend of_token(DecodeData<S>& data, int64_t b, int64_t t) {
    const DecodeCase& c = data.spec;
    HktAppend a;
    a.dtype = TypeOf<S>::kDType;
    a.batch = 1, a.heads = c.heads, a.key_heads = c.key_heads, a.levels = c.levels;
    a.head_size = c.head_size, a.value_size = c.value_size;
    auto at = [](auto view, int64_t b, int64_t row) {
      view.data = static_cast<S*>(const_cast<void*>(static_cast<const void*>(view.data))) + b * view.stride[0] +
                  row * view.stride[2];
      return view;
    };
    for (int l = 0; l < c.levels; ++l) {
      a.q[l] = at(data.all.q[l].const_view(), b, t >> l), a.k[l] = at(data.all.k[l].const_view(), b, t >> l);
      if (t % (1 << l) != 0)
        a.q[l] = at(data.all.q[l].const_view(), b, 0), a.k[l] = at(data.all.k[l].const_view(), b, 0);
      a.queries[l] = at(data.q[l].view(), b, 0), a.query_slots[l] = data.q[l].shape()[2];
      a.keys[l] = at(data.k[l].view(), b, 0), a.key_slots[l] = data.k[l].shape()[2];
    }
    a.v = at(data.all.v.const_view(), b, t);
    a.values = at(data.v.view(), b, 0), a.value_slots = data.v.shape()[2];
    length = t;
    a.lengths = &length;
    return a;
  }
  int64_t length = 0;
};

template <class S>
struct PyramidSteps {
  PyramidSteps(int levels_, int taps_, int64_t batch_, int64_t channels_, bool input_filter_)
      : levels(levels_), taps(taps_), batch(batch_), channels(channels_), input_filter(input_filter_) {
    std::mt19937_64 random(1);
    x = Array<S>(1, 1, batch, channels);
    for (int l = 0; l < levels; ++l) {
      filters.emplace_back(1, 1, taps, channels);
      filters[l].randomize(random, 0.5);
      states.emplace_back(1, batch, taps + l, channels);
    }
    inputs = Array<S>(1, batch, taps, channels);
    out = Array<S>(1, batch, levels, channels);
    lengths.assign(batch, 0);
    tokens = Array<S>(1, batch, 100, channels);
    tokens.randomize(random);
  }
  // Token t of every sequence.
  void load(int64_t t) {
    x.each([&](int64_t, int64_t, int64_t b, int64_t c) { x(0, 0, b, c) = S(tokens(0, b, t, c)); });
  }
  void count() {
    for (int64_t& length : lengths) ++length;
  }
  PyramidStep step() {
    PyramidStep p;
    p.dtype = TypeOf<S>::kDType;
    p.batch = batch, p.channels = channels, p.taps = taps, p.levels = levels;
    p.x = x.data(), p.lengths = lengths.data(), p.out = out.data();
    if (input_filter) p.filters[0] = filters[0].data(), p.inputs = inputs.data(), p.input_slots = taps;
    for (int l = 1; l < levels; ++l) p.filters[l] = filters[l].data();
    for (int l = 0; l + 1 < levels; ++l) p.states[l] = states[l].data(), p.slots[l] = taps + l;
    return p;
  }
  // How far `out` is from the rows of the whole sequences, in double: the largest difference.
  double error() {
    double worst = 0;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t c = 0; c < channels; ++c) {
        for (int l = 0; l < levels; ++l) {
          const bool begins = lengths[b] % (int64_t{1} << l) == 0;
          const double want = begins ? row(b, c, l, lengths[b] >> l) : 0.0;
          const double difference = std::fabs(out(0, b, l, c) - want);
          worst = difference <= worst ? worst : difference;  // NaN counts
        }
      }
    }
    return worst;
  }
  int levels, taps;
  int64_t batch, channels;
  bool input_filter;
  Array<S> x, inputs, out, tokens;
  std::vector<Array<S>> filters, states;
  std::vector<int64_t> lengths;

 private:
  // x^(l)_m by its definition: sum_r W_r x^(l-1)_{2 m - r}.
  double row(int64_t b, int64_t c, int l, int64_t m) const {
    if (m < 0) return 0.0;
    if (l == 0 && !input_filter) return tokens(0, b, m, c);
    double sum = 0;
    for (int r = 0; r < taps; ++r) {
      const double below = l > 0 ? row(b, c, l - 1, 2 * m - r) : m >= r ? tokens(0, b, m - r, c) : 0.0;
      sum += filters[l](0, 0, r, c) * below;
    }
    return sum;
  }
};

}  // namespace strata::test
