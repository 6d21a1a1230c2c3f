// Problems of streaming HSA, and the table of cases that the CPU and the GPU share.
#pragma once

#include "cases/array.h"
#include "strata/hsa_stream.h"

namespace strata::test {

struct StreamCase {
  std::string name;
  int64_t batch, heads, tokens;
  int branching, head_size, value_size;
  bool weights = false, key_bias = false, positions = false;
  Memory memory = Memory::kDense;
};
inline std::ostream& operator<<(std::ostream& out, const StreamCase& c) { return out << c.name; }

template <class S>
struct StreamData {
  using T = typename TypeOf<S>::Compute;
  explicit StreamData(const StreamCase& c) : spec(c) {
    std::mt19937_64 random(4);
    for (Array<S>* array : {&q, &k, &dq, &dk}) *array = Array<S>(c.batch, c.heads, c.tokens, c.head_size, c.memory);
    for (Array<S>* array : {&v, &dv, &out, &dout})
      *array = Array<S>(c.batch, c.heads, c.tokens, c.value_size, c.memory);
    for (Array<S>* array : {&q, &k, &v, &dout}) array->randomize(random);
    for (Array<T>* array : {&lse, &dlse}) *array = Array<T>(1, c.batch, c.heads, c.tokens);
    dlse.randomize(random, 0.3);
    weights = Array<T>(c.batch, 1, c.tokens, 1);
    dweights = Array<T>(c.batch, c.heads, c.tokens, 1);
    weights.each([&](auto... at) {
      const double u = std::uniform_real_distribution<double>(-0.5, 2)(random);
      weights(at...) = static_cast<T>(u < 0 ? 0.0 : u);
    });
    for (Array<T>* array : {&key_bias, &dkey_bias}) *array = Array<T>(c.batch, c.heads, c.tokens, 1);
    key_bias.randomize(random, 0.5);
    heights = hsa_stream_heights(c.tokens, c.branching);
    for (Array<T>* array : {&positions, &dpositions}) *array = Array<T>(1, c.heads, heights, c.branching * c.branching);
    positions.randomize(random, 0.5);
  }
  template <class Other>
  void copy_inputs_from(const StreamData<Other>& o) {
    q.copy_from(o.q), k.copy_from(o.k), v.copy_from(o.v), dout.copy_from(o.dout), dlse.copy_from(o.dlse);
    weights.copy_from(o.weights), key_bias.copy_from(o.key_bias), positions.copy_from(o.positions);
  }
  HsaStreamProblem problem(int threads = 1) {
    HsaStreamProblem p;
    p.dtype = TypeOf<S>::kDType;
    p.batch = spec.batch, p.heads = spec.heads, p.tokens = spec.tokens, p.branching = spec.branching;
    p.head_size = spec.head_size, p.value_size = spec.value_size;
    p.q = q.view(), p.k = k.view(), p.v = v.view();
    if (spec.weights) p.weights = weights.view();
    if (spec.key_bias) p.key_bias = key_bias.view();
    if (spec.positions) p.positions = positions.data(), p.heights = heights;
    p.scale = 0.7;
    p.threads = threads;
    return p;
  }
  HsaStreamOutputs outputs() { return {out.view(), lse.data()}; }
  HsaStreamGradients gradients() {
    HsaStreamGradients g;
    g.dout = dout.view(), g.dlse = dlse.data(), g.dq = dq.view(), g.dk = dk.view(), g.dv = dv.view();
    if (spec.weights) g.dweights = dweights.view();
    if (spec.key_bias) g.dkey_bias = dkey_bias.view();
    if (spec.positions) g.dpositions = dpositions.data();
    return g;
  }
  template <class Want, class F>
  void each_result(const Want& want, F f) const {
    f("out", out, want.out), f("lse", lse, want.lse), f("dq", dq, want.dq), f("dk", dk, want.dk), f("dv", dv, want.dv);
    if (spec.weights) f("dweights", dweights, want.dweights);
    if (spec.key_bias) f("dkey_bias", dkey_bias, want.dkey_bias);
    if (spec.positions) f("dpositions", dpositions, want.dpositions);
  }
  StreamCase spec;
  int64_t heights;
  Array<S> q, k, v, out, dout, dq, dk, dv;
  Array<T> lse, dlse, weights, dweights, key_bias, dkey_bias, positions, dpositions;
};

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

}  // namespace strata::test
