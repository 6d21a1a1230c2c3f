// HKT attention the obvious way, in any precision: dense T x T matrices, one after the other, each stored as type S
// while sums are taken in T, as an eager framework does. In double it is a second, independently written definition; in
// float and bfloat16 it says what plain arithmetic loses, which is what the tolerance of the fused kernels is measured
// by.
#pragma once

#include <array>

#include "cases/hkt_case.h"

namespace strata::test {

template <class S>
struct PlainHkt {
  using T = typename TypeOf<S>::Compute;
  Array<T> out, dv, dbias;
  std::vector<Array<T>> dq, dk;
  Array<T> lse, dweights;

  explicit PlainHkt(const HktData<S>& d) {
    const HktCase& c = d.spec;
    for (int l = 0; l < c.levels; ++l) {
      dq.push_back(zeros(d.parts(), c.heads, d.query_rows(l), c.head_size));
      dk.push_back(zeros(d.parts(), c.key_heads, d.key_rows(l), c.head_size));
    }
    out = zeros(d.parts(), c.heads, d.query_rows(0), c.value_size);
    dv = zeros(d.parts(), c.key_heads, d.key_rows(0), c.value_size);
    lse = zeros(1, d.parts(), c.heads, d.query_rows(0));
    dweights = zeros(1, 1, c.heads, c.levels);
    if (d.has_bias()) dbias = zeros(d.bias.shape()[0], d.bias.shape()[1], c.tokens, c.keys());
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t h = 0; h < c.heads; ++h) run(d, b, h);
    for (auto* gradients : {&dq, &dk})
      for (Array<T>& gradient : *gradients) store(gradient);
    store(dv);
    store(dbias);
  }

 private:
  static Array<T> zeros(int64_t b, int64_t h, int64_t t, int64_t c) {
    Array<T> array(b, h, t, c);
    array.fill(0);
    return array;
  }

  static T stored(T x) { return static_cast<T>(S(x)); }
  static void store(Array<T>& array) {
    array.each([&](auto... at) { array(at...) = stored(array(at...)); });
  }

  // Philox4x32-10 written out a second time: word x / 2 of counter (key / 8, row, head, sequence), its lower half
  // first.
  static bool is_dropped(const HktData<S>& d, int64_t b, int64_t h, int64_t i, int64_t j) {
    uint64_t key = static_cast<uint64_t>(d.dropout_state[0]);
    for (int64_t n = 0; n < d.dropout_state[1]; ++n) key += 0x9E3779B97F4A7C15u;
    std::array<uint64_t, 4> c = {static_cast<uint64_t>(j / 8), static_cast<uint64_t>(i), static_cast<uint64_t>(h),
                                 static_cast<uint64_t>(b)};
    uint64_t k0 = key % (uint64_t{1} << 32), k1 = key >> 32;
    for (int round = 0; round < 10; ++round) {
      const uint64_t low = 0xffffffffu, first = 0xD2511F53u * c[0], third = 0xCD9E8D57u * c[2];
      c = {(third >> 32) ^ c[1] ^ k0, third & low, (first >> 32) ^ c[3] ^ k1, first & low};
      k0 = (k0 + 0x9E3779B9u) & low;
      k1 = (k1 + 0xBB67AE85u) & low;
    }
    const uint64_t bits = c[j % 8 / 2] >> (j % 2 == 0 ? 0 : 16) & 0xffff;
    return static_cast<double>(bits) < std::round(d.spec.dropout * 65536);
  }

  void run(const HktData<S>& d, int64_t b, int64_t h) {
    const HktCase& c = d.spec;
    const int64_t n = c.lengths.empty() ? c.tokens : c.lengths[b];
    const int64_t n_keys = c.lengths_of_keys().empty() ? c.keys() : c.lengths_of_keys()[b];
    const int64_t kh = h / (c.heads / c.key_heads);
    const T scale = T(1) / std::sqrt(T(c.head_size));
    const T kept = static_cast<T>(1 / (1 - std::round(c.dropout * 65536) / 65536));
    std::vector<T> P(n * n_keys), dS(n * n_keys);
    auto query = [&](int l) { return d.queries.place(b, l); };
    auto key = [&](int l) { return d.keys.place(b, l); };
    auto bias = [&](int64_t i, int64_t j) {
      const T alibi = c.alibi ? -T(d.slopes(0, 0, 0, h)) * T(std::abs(i - j)) : T(0);
      if (!d.has_bias()) return alibi;
      return alibi + T(d.bias(d.bias.shape()[0] == 1 ? 0 : b, d.bias.shape()[1] == 1 ? 0 : h, i, j));
    };
    auto visible = [&](int64_t i, int64_t j) {
      return (!c.causal || j <= i) && (c.window_left < 0 || j >= i - c.window_left) &&
             (c.window_right < 0 || j <= i + c.window_right);
    };
    auto factor = [&](int64_t i, int64_t j) { return c.dropout == 0 ? T(1) : is_dropped(d, b, h, i, j) ? T(0) : kept; };
    auto product = [&](int l, int64_t i, int64_t j) {
      const SequencePlace q = query(l), k = key(l);
      T sum = 0;
      for (int x = 0; x < c.head_size; ++x)
        sum += T(d.q[l](q.part, h, q.row + (i >> l), x)) * T(d.k[l](k.part, kh, k.row + (j >> l), x));
      return sum;
    };
    const auto [part, row] = query(0);
    const auto [key_part, key_row] = key(0);
    for (int64_t i = 0; i < (c.packed ? n : c.tokens); ++i) {
      lse(0, part, h, row + i) = -std::numeric_limits<T>::infinity();
      if (i >= n) continue;
      T peak = -std::numeric_limits<T>::infinity(), sum = 0;
      for (int64_t j = 0; j < n_keys; ++j) {
        T s = 0;
        for (int l = 0; l < c.levels; ++l) s += T(d.weights(0, 0, h, l)) * product(l, i, j);
        P[i * n_keys + j] = visible(i, j) ? stored(scale * s + bias(i, j)) : -std::numeric_limits<T>::infinity();
        peak = std::max(peak, P[i * n_keys + j]);
      }
      if (peak == -std::numeric_limits<T>::infinity()) {
        std::fill_n(P.begin() + i * n_keys, n_keys, T(0));
        continue;
      }
      for (int64_t j = 0; j < n_keys; ++j) {
        P[i * n_keys + j] = std::exp(P[i * n_keys + j] - peak);
        sum += P[i * n_keys + j];
      }
      lse(0, part, h, row + i) = peak + std::log(sum);
      T D = -T(d.dlse(0, part, h, row + i));
      for (int64_t j = 0; j < n_keys; ++j) P[i * n_keys + j] = stored(P[i * n_keys + j] / sum);
      for (int x = 0; x < c.value_size; ++x) {
        T o = 0;
        for (int64_t j = 0; j < n_keys; ++j)
          o += factor(i, j) * P[i * n_keys + j] * T(d.v(key_part, kh, key_row + j, x));
        out(part, h, row + i, x) = stored(o);
        D += stored(o) * T(d.dout(part, h, row + i, x));
      }
      for (int64_t j = 0; j < n_keys; ++j) {
        if (!visible(i, j)) continue;
        T dP = 0;
        for (int x = 0; x < c.value_size; ++x) {
          dP += T(d.dout(part, h, row + i, x)) * T(d.v(key_part, kh, key_row + j, x));
          dv(key_part, kh, key_row + j, x) += factor(i, j) * P[i * n_keys + j] * T(d.dout(part, h, row + i, x));
        }
        dS[i * n_keys + j] = stored(P[i * n_keys + j] * (stored(factor(i, j) * dP) - D));
        if (d.has_bias())
          dbias(dbias.shape()[0] == 1 ? 0 : b, dbias.shape()[1] == 1 ? 0 : h, i, j) += dS[i * n_keys + j];
      }
    }
    for (int l = 0; l < c.levels; ++l) {
      const T a = T(d.weights(0, 0, h, l));
      const SequencePlace q = query(l), k = key(l);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n_keys; ++j) {
          const T g = scale * dS[i * n_keys + j];
          if (g == T(0)) continue;
          dweights(0, 0, h, l) += g * product(l, i, j);
          for (int x = 0; x < c.head_size; ++x) {
            dq[l](q.part, h, q.row + (i >> l), x) += a * g * T(d.k[l](k.part, kh, k.row + (j >> l), x));
            dk[l](k.part, kh, k.row + (j >> l), x) += a * g * T(d.q[l](q.part, h, q.row + (i >> l), x));
          }
        }
      }
    }
  }
};

// How far `got` is from `want`: the largest difference, over the largest number of `want`. Infinities must agree
// exactly.
template <class A, class B>
double relative_error(const Array<A>& got, const Array<B>& want) {
  double worst = 0, size = 0;
  want.each([&](auto... at) {
    const double w = want(at...), g = got(at...);
    if (std::isinf(w) || std::isnan(w) || std::isnan(g)) {
      if (!(g == w)) worst = std::numeric_limits<double>::infinity();
      return;
    }
    worst = std::max(worst, std::abs(g - w));
    size = std::max(size, std::abs(w));
  });
  return size > 0 ? worst / size : worst;
}

// Calls f(name, got, want) for each output and gradient of two holders of HKT results.
template <class Got, class Want, class F>
void each_result(const Got& got, const Want& want, bool has_bias, F f) {
  f("out", got.out, want.out);
  f("lse", got.lse, want.lse);
  for (size_t l = 0; l < got.dq.size(); ++l) {
    f("dq[" + std::to_string(l) + "]", got.dq[l], want.dq[l]);
    f("dk[" + std::to_string(l) + "]", got.dk[l], want.dk[l]);
  }
  f("dv", got.dv, want.dv);
  f("dweights", got.dweights, want.dweights);
  if (has_bias) f("dbias", got.dbias, want.dbias);
}

}  // namespace strata::test
