// The public calls: check the arguments, then run the kernels of the current instruction set.
#include "strata/hsa.h"

#include "base/hsa_check.h"
#include "cpu/kernels.h"

namespace strata {

Status hsa_forward(const HsaProblem& p, const HsaOutputs& outputs) {
  if (Status s = hsa_check(p); !s.ok()) return s;
  return kernel_status(cpu_kernels().hsa_forward(p, outputs, threads_or_default(p.threads)), "HSA");
}

Status hsa_backward(const HsaProblem& p, const HsaGradients& g) {
  if (Status s = hsa_check(p); !s.ok()) return s;
  if (Status s = hsa_check(g, p); !s.ok()) return s;
  return kernel_status(cpu_kernels().hsa_backward(p, g, threads_or_default(p.threads)), "HSA");
}

}  // namespace strata
