// A decoding step of streaming attention on the data of a case, for the tests of every device.
#pragma once

#include <vector>

#include "cases/hsa_stream_case.h"

namespace strata::test {

// The cache and the new token of a decoding step in double.
struct Decoder {
  explicit Decoder(const StreamData<double>& d) : c(d.spec), heights(d.heights) {
    const int64_t slots = c.key_heads * heights * c.near * c.branching, width = c.levels * c.head_size;
    keys.resize(c.batch * slots * width), values.resize(c.batch * slots * c.value_size);
    kappas.resize(c.batch * slots), masses.resize(c.batch * slots / c.key_heads), lengths.resize(c.batch);
    q.resize(c.batch * c.heads * width), k.resize(c.batch * c.key_heads * width), weight.resize(c.batch);
    v.resize(c.batch * c.key_heads * c.value_size), bias.resize(c.batch * c.key_heads);
    out.resize(c.batch * c.heads * c.value_size);
  }
  void load(const StreamData<double>& d, int64_t t) {
    for (int64_t b = 0; b < c.batch; ++b) {
      weight[b] = d.weights(b, 0, t, 0);
      for (int l = 0; l < c.levels; ++l) {
        for (int64_t h = 0; h < c.heads; ++h)
          for (int x = 0; x < c.head_size; ++x)
            q[((b * c.heads + h) * c.levels + l) * c.head_size + x] = d.q[l](b, h, t >> l, x);
        for (int64_t h = 0; h < c.key_heads; ++h)
          for (int x = 0; x < c.head_size; ++x)
            k[((b * c.key_heads + h) * c.levels + l) * c.head_size + x] = d.k[l](b, h, t >> l, x);
      }
      for (int64_t h = 0; h < c.key_heads; ++h) {
        bias[b * c.key_heads + h] = d.key_bias(b, h, t, 0);
        for (int x = 0; x < c.value_size; ++x) v[(b * c.key_heads + h) * c.value_size + x] = d.v(b, h, t, x);
      }
    }
  }
  HsaStreamStep step(StreamData<double>& d) {
    HsaStreamStep s;
    s.dtype = DType::kFloat64;
    s.batch = c.batch, s.heads = c.heads, s.key_heads = c.key_heads, s.branching = c.branching, s.near = c.near;
    s.levels = c.levels, s.head_size = c.head_size, s.value_size = c.value_size, s.capacity = heights, s.scale = 0.7;
    s.q = q.data(), s.k = k.data(), s.v = v.data(), s.weight = weight.data(), s.key_bias = bias.data();
    if (c.levels > 1) s.level_weights = d.level_weights.data();
    s.positions = d.positions.data(), s.heights = heights;
    s.keys = keys.data(), s.values = values.data(), s.kappas = kappas.data(), s.masses = masses.data();
    s.lengths = lengths.data(), s.out = out.data();
    return s;
  }
  StreamCase c;
  int64_t heights;
  std::vector<double> keys, values, kappas, masses, q, k, v, weight, bias, out;
  std::vector<int64_t> lengths;
};

}  // namespace strata::test
