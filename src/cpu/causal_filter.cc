// The public calls of the causal filter: check, then hand over to the kernels of the current instruction set.
#include "base/causal_filter_check.h"
#include "cpu/kernels.h"

namespace strata {
namespace {

// Small filters, such as those of a decoding step, are done before a second thread has started.
int threads_of(const CausalFilter& f) {
  constexpr int64_t kSmall = 1 << 16;  // products
  const int64_t products = f.batch * f.tokens * f.channels * f.taps * (f.dense ? f.channels : 1);
  return products <= kSmall ? 1 : threads_or_default(f.threads);
}

}  // namespace

Status causal_filter_forward(const CausalFilter& f, void* y) {
  if (Status s = causal_filter_check(f, y); !s.ok()) return s;
  return kernel_status(cpu_kernels().causal_filter_forward(f, y, threads_of(f)), "causal filter");
}

Status causal_filter_backward(const CausalFilter& f, const CausalFilterGradients& g) {
  if (Status s = causal_filter_check(f, g); !s.ok()) return s;
  return kernel_status(cpu_kernels().causal_filter_backward(f, g, threads_of(f)), "causal filter");
}

Status pyramid_step(const PyramidStep& p) {
  if (Status s = pyramid_step_check(p); !s.ok() || p.batch == 0) return s;
  return kernel_status(cpu_kernels().pyramid_step(p), "pyramid");
}

}  // namespace strata
