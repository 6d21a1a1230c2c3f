// The public calls: check, then hand over to the kernels of the current instruction set.
#include "strata/hkt.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "core/hkt_check.h"
#include "core/text.h"
#include "cpu/hkt_cpu.h"
#include "strata/cpu.h"

namespace strata {
namespace {

const HktCpuKernels& kernels() {
#ifdef STRATA_X86
  switch (current_isa()) {
    case Isa::kAvx512:
      return isa_avx512::kHktKernels;
    case Isa::kAvx2:
      return isa_avx2::kHktKernels;
    case Isa::kPortable:
      break;
  }
#endif
  return isa_portable::kHktKernels;
}

int threads_or_default(int threads) { return threads > 0 ? threads : std::max(1, omp_get_max_threads()); }

Status finished(bool had_memory) {
  if (had_memory) return {};
  return {StatusCode::kOutOfMemory,
          "out of memory: the HKT kernel could not allocate its work space; use fewer threads or shorter sequences"};
}

}  // namespace

Status hkt_forward(const HktProblem& p, const HktOutputs& outputs) {
  if (Status s = hkt_check(p, outputs); !s.ok()) return s;
  if (p.batch == 0 || p.tokens == 0) return {};
  return finished(kernels().forward(p, outputs, threads_or_default(p.threads)));
}

Status hkt_backward(const HktProblem& p, const HktOutputs& outputs, const HktGradients& g) {
  if (Status s = hkt_check(p, outputs); !s.ok()) return s;
  if (Status s = hkt_check(g, p); !s.ok()) return s;
  if (p.batch == 0 || p.tokens == 0) {
    const size_t number = p.dtype == DType::kFloat64 ? sizeof(double) : sizeof(float);
    std::memset(g.dweights, 0, number * p.heads * p.levels);
    return {};
  }
  return finished(kernels().backward(p, outputs, g, threads_or_default(p.threads)));
}

Status hkt_decode(const HktDecode& d) {
  if (Status s = hkt_check(d); !s.ok()) return s;
  if (d.batch == 0) return {};
  return finished(kernels().decode(d, threads_or_default(d.threads)));
}

}  // namespace strata
