#include "base/causal_filter_check.h"

#include <string>

#include "base/check.h"
#include "base/text.h"

namespace strata {
namespace {

Status check(const CausalFilter& f, On on) {
  if (on == On::kHost && f.dtype == DType::kFloat16)
    return invalid("dtype: expected kFloat32, kFloat64 or kBFloat16 on the CPU, got kFloat16");
  if (f.batch < 0 || f.tokens < 0)
    return invalid("batch, tokens: expected 0 or more, got ", f.batch, " and ", f.tokens);
  if (f.channels < 1) return invalid("channels: expected 1 or more, got ", f.channels);
  if (f.taps < 1) return invalid("taps: expected 1 or more, got ", f.taps);
  if (f.stride != 1 && f.stride != 2) return invalid("stride: expected 1 or 2, got ", f.stride);
  if (on == On::kDevice && f.dense)
    return invalid("dense: expected false on CUDA, where a dense filter is a matrix product; use a BLAS library");
  if (f.threads < 0) return invalid("threads: expected 0 (automatic) or more, got ", f.threads);
  if (f.weight == nullptr) return invalid("weight: expected a pointer to data, got null");
  if (f.x == nullptr && f.batch * f.tokens > 0) return invalid("x: expected a pointer to data, got null");
  return {};
}

}  // namespace

Status causal_filter_check(const CausalFilter& f, const void* y, On on) {
  if (Status s = check(f, on); !s.ok()) return s;
  if (y == nullptr && f.batch * f.tokens > 0) return invalid("y: expected a pointer to data, got null");
  return {};
}

Status causal_filter_check(const CausalFilter& f, const CausalFilterGradients& g, On on) {
  if (Status s = check(f, on); !s.ok()) return s;
  if (g.dweight == nullptr || ((g.dy == nullptr || g.dx == nullptr) && f.batch * f.tokens > 0))
    return invalid("dy, dx, dweight: expected pointers to data, got null; all three are needed");
  return {};
}

Status pyramid_step_check(const PyramidStep& p, On on) {
  if (Status s = check_dtype(p.dtype, on); !s.ok()) return s;
  if (Status s = check_range("levels", p.levels, 1, kMaxLevels); !s.ok()) return s;
  if (p.batch < 0) return invalid("batch: expected 0 or more, got ", p.batch);
  if (p.channels < 1) return invalid("channels: expected 1 or more, got ", p.channels);
  if (p.taps < 1) return invalid("taps: expected 1 or more, got ", p.taps);
  if (p.batch == 0) return {};
  if (Status s = check_present({{"x", p.x}, {"lengths", p.lengths}, {"out", p.out}}); !s.ok()) return s;
  auto check_ring = [&](const std::string& name, const void* ring, int64_t slots) -> Status {
    if (Status s = check_present({{name, ring}}); !s.ok()) return s;
    return slots >= p.taps ? Status() : invalid(name, ": expected at least taps = ", p.taps, " slots, got ", slots);
  };
  if (p.filters[0] != nullptr) {
    if (Status s = check_ring("inputs", p.inputs, p.input_slots); !s.ok()) return s;
  }
  for (int l = 1; l < p.levels; ++l) {
    if (Status s = check_present({{text("filters[", l, "]"), p.filters[l]}}); !s.ok()) return s;
    if (Status s = check_ring(text("states[", l - 1, "]"), p.states[l - 1], p.slots[l - 1]); !s.ok()) return s;
  }
  for (int64_t b = 0; on == On::kHost && b < p.batch; ++b) {
    if (p.lengths[b] < 0) return invalid("lengths: expected 0 or more, got ", p.lengths[b], " for sequence ", b);
  }
  return {};
}

}  // namespace strata
