// The public calls of the causal filter: check, then hand over to the kernels of the current instruction set.
#include "base/causal_filter_check.h"
#include "cpu/kernels.h"

namespace strata {

Status causal_filter_forward(const CausalFilter& f, void* y) {
  if (Status s = causal_filter_check(f, y); !s.ok()) return s;
  return kernel_status(cpu_kernels().causal_filter_forward(f, y, threads_or_default(f.threads)), "causal filter");
}

Status causal_filter_backward(const CausalFilter& f, const CausalFilterGradients& g) {
  if (Status s = causal_filter_check(f, g); !s.ok()) return s;
  return kernel_status(cpu_kernels().causal_filter_backward(f, g, threads_or_default(f.threads)), "causal filter");
}

}  // namespace strata
