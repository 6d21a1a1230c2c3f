// HKT attention the obvious way, in any precision: dense T x T matrices, one after the other, each stored as type S
// while sums are taken in T, as an eager framework does. In double it is a second, independently written definition; in
// float and bfloat16 it says what plain arithmetic loses, which is what the tolerance of the fused kernels is measured
// by.
#pragma once

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
      dq.push_back(zeros(c.batch, c.heads, hkt_level_tokens(c.tokens, l), c.head_size));
      dk.push_back(zeros(c.batch, c.key_heads, hkt_level_tokens(c.tokens, l), c.head_size));
    }
    out = zeros(c.batch, c.heads, c.tokens, c.value_size);
    dv = zeros(c.batch, c.key_heads, c.tokens, c.value_size);
    lse = zeros(1, c.batch, c.heads, c.tokens);
    dweights = zeros(1, 1, c.heads, c.levels);
    if (d.has_bias()) dbias = zeros(d.bias.shape()[0], d.bias.shape()[1], c.tokens, c.tokens);
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

  void run(const HktData<S>& d, int64_t b, int64_t h) {
    const HktCase& c = d.spec;
    const int64_t n = c.lengths.empty() ? c.tokens : c.lengths[b];
    const int64_t kh = h / (c.heads / c.key_heads);
    const T scale = T(1) / std::sqrt(T(c.head_size));
    std::vector<T> P(n * n), dS(n * n);
    auto bias = [&](int64_t i, int64_t j) {
      return d.has_bias() ? T(d.bias(d.bias.shape()[0] == 1 ? 0 : b, d.bias.shape()[1] == 1 ? 0 : h, i, j)) : T(0);
    };
    auto product = [&](int l, int64_t i, int64_t j) {
      T sum = 0;
      for (int x = 0; x < c.head_size; ++x) sum += T(d.q[l](b, h, i >> l, x)) * T(d.k[l](b, kh, j >> l, x));
      return sum;
    };
    for (int64_t i = 0; i < c.tokens; ++i) {
      lse(0, b, h, i) = -std::numeric_limits<T>::infinity();
      if (i >= n) continue;
      const int64_t keys = c.causal ? i + 1 : n;
      T peak = -std::numeric_limits<T>::infinity(), sum = 0;
      for (int64_t j = 0; j < keys; ++j) {
        T s = 0;
        for (int l = 0; l < c.levels; ++l) s += T(d.weights(0, 0, h, l)) * product(l, i, j);
        P[i * n + j] = stored(scale * s + bias(i, j));
        peak = std::max(peak, P[i * n + j]);
      }
      if (peak == -std::numeric_limits<T>::infinity()) {
        std::fill_n(&P[i * n], n, T(0));
        continue;
      }
      for (int64_t j = 0; j < n; ++j) {
        P[i * n + j] = j < keys ? std::exp(P[i * n + j] - peak) : T(0);
        sum += P[i * n + j];
      }
      lse(0, b, h, i) = peak + std::log(sum);
      T D = -T(d.dlse(0, b, h, i));
      for (int64_t j = 0; j < n; ++j) P[i * n + j] = stored(P[i * n + j] / sum);
      for (int x = 0; x < c.value_size; ++x) {
        T o = 0;
        for (int64_t j = 0; j < n; ++j) o += P[i * n + j] * T(d.v(b, kh, j, x));
        out(b, h, i, x) = stored(o);
        D += stored(o) * T(d.dout(b, h, i, x));
      }
      for (int64_t j = 0; j < keys; ++j) {
        T dP = 0;
        for (int x = 0; x < c.value_size; ++x) {
          dP += T(d.dout(b, h, i, x)) * T(d.v(b, kh, j, x));
          dv(b, kh, j, x) += P[i * n + j] * T(d.dout(b, h, i, x));
        }
        dS[i * n + j] = stored(P[i * n + j] * (stored(dP) - D));
        if (d.has_bias()) dbias(dbias.shape()[0] == 1 ? 0 : b, dbias.shape()[1] == 1 ? 0 : h, i, j) += dS[i * n + j];
      }
    }
    for (int l = 0; l < c.levels; ++l) {
      const T a = T(d.weights(0, 0, h, l));
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          const T g = scale * dS[i * n + j];
          if (g == T(0)) continue;
          dweights(0, 0, h, l) += g * product(l, i, j);
          for (int x = 0; x < c.head_size; ++x) {
            dq[l](b, h, i >> l, x) += a * g * T(d.k[l](b, kh, j >> l, x));
            dk[l](b, kh, j >> l, x) += a * g * T(d.q[l](b, h, i >> l, x));
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
