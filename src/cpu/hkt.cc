// The public calls: check the arguments, then run the kernels of the current instruction set.
#include "strata/hkt.h"

#include <cstring>

#include "base/hkt_check.h"
#include "cpu/kernels.h"

namespace strata {

Status hkt_forward(const HktProblem& problem, const HktOutputs& outputs) {
  if (Status s = hkt_check(problem, outputs); !s.ok()) return s;
  const HktProblem p = hkt_complete(problem);
  if (hkt_is_empty(p)) return {};
  return kernel_status(cpu_kernels().hkt_forward(p, outputs, threads_or_default(p.threads)), "HKT");
}

Status hkt_backward(const HktProblem& problem, const HktOutputs& outputs, const HktGradients& g) {
  if (Status s = hkt_check(problem, outputs); !s.ok()) return s;
  if (Status s = hkt_check(g, problem); !s.ok()) return s;
  const HktProblem p = hkt_complete(problem);
  if (hkt_is_empty(p)) {
    const size_t number = p.dtype == DType::kFloat64 ? sizeof(double) : sizeof(float);
    std::memset(g.dweights, 0, number * p.heads * p.levels);
    return {};
  }
  return kernel_status(cpu_kernels().hkt_backward(p, outputs, g, threads_or_default(p.threads)), "HKT");
}

Status hkt_decode(const HktDecode& d) {
  if (Status s = hkt_check(d); !s.ok()) return s;
  if (d.batch == 0) return {};
  return kernel_status(cpu_kernels().hkt_decode(d, threads_or_default(d.threads)), "HKT");
}

Status hkt_append(const HktAppend& a) {
  if (Status s = hkt_check(a); !s.ok() || a.batch == 0) return s;
  return kernel_status(cpu_kernels().hkt_append(a), "HKT");
}

}  // namespace strata
