// Problems of the causal filter, the table that the CPU and the GPU share, and the definition in plain loops.
#pragma once

#include <string>

#include "cases/array.h"
#include "strata/pyramid.h"

namespace strata::test {

struct FilterCase {
  std::string name;
  int64_t batch, tokens, channels;
  int taps, stride;
  bool dense = false;
};
inline std::ostream& operator<<(std::ostream& out, const FilterCase& c) { return out << c.name; }

inline std::vector<FilterCase> filter_cases() {
  return {{"one_token", 1, 1, 1, 3, 2},         {"one_tap", 2, 9, 5, 1, 2},
          {"stride_one", 2, 33, 7, 3, 1},       {"block", 1, 64, 64, 3, 2},
          {"beside_a_block", 3, 65, 65, 3, 2},  {"odd", 2, 131, 33, 4, 2},
          {"many_taps", 1, 40, 96, 9, 2},       {"more_taps_than_tokens", 2, 3, 4, 6, 1},
          {"long", 2, 1500, 40, 3, 2},          {"no_tokens", 2, 0, 3, 3, 2},
          {"dense", 2, 21, 10, 3, 2, true},     {"dense_stride_one", 1, 17, 70, 2, 1, true},
          {"dense_wide", 2, 9, 130, 3, 2, true}};
}

template <class S>
struct FilterData {
  explicit FilterData(const FilterCase& c) : spec(c) {
    std::mt19937_64 random(5);
    const int64_t rows = filtered_tokens(c.tokens, c.stride);
    for (Array<S>* array : {&x, &dx}) *array = Array<S>(1, c.batch, c.tokens, c.channels);
    for (Array<S>* array : {&y, &dy}) *array = Array<S>(1, c.batch, rows, c.channels);
    for (Array<S>* array : {&weight, &dweight}) *array = Array<S>(1, c.taps, c.dense ? c.channels : 1, c.channels);
    for (Array<S>* array : {&x, &dy, &weight}) array->randomize(random);
  }
  template <class Other>
  void copy_inputs_from(const FilterData<Other>& o) {
    x.copy_from(o.x), dy.copy_from(o.dy), weight.copy_from(o.weight);
  }
  CausalFilter problem(int threads = 1) {
    CausalFilter f;
    f.dtype = TypeOf<S>::kDType;
    f.batch = spec.batch, f.tokens = spec.tokens, f.channels = spec.channels;
    f.taps = spec.taps, f.stride = spec.stride, f.dense = spec.dense, f.threads = threads;
    f.x = x.data(), f.weight = weight.data();
    return f;
  }
  // y, dx and dweight by their definitions.
  void define() {
    for (Array<S>* array : {&y, &dx, &dweight}) array->fill(0);
    const int64_t C = spec.channels;
    for (int64_t b = 0; b < spec.batch; ++b) {
      for (int64_t m = 0; m < filtered_tokens(spec.tokens, spec.stride); ++m) {
        for (int64_t r = 0; r < spec.taps && r <= spec.stride * m; ++r) {
          const int64_t t = spec.stride * m - r;
          for (int64_t o = 0; o < C; ++o) {
            for (int64_t c = spec.dense ? 0 : o; c < (spec.dense ? C : o + 1); ++c) {
              const int64_t row = spec.dense ? o : 0;
              y(0, b, m, o) = y(0, b, m, o) + weight(0, r, row, c) * x(0, b, t, c);
              dx(0, b, t, c) = dx(0, b, t, c) + weight(0, r, row, c) * dy(0, b, m, o);
              dweight(0, r, row, c) = dweight(0, r, row, c) + dy(0, b, m, o) * x(0, b, t, c);
            }
          }
        }
      }
    }
  }
  template <class Want, class F>
  void each_result(const Want& want, F f) const {
    f("y", y, want.y), f("dx", dx, want.dx), f("dweight", dweight, want.dweight);
  }

  FilterCase spec;
  Array<S> x, dx, y, dy, weight, dweight;
};

}  // namespace strata::test
