// What one instruction set offers: the launchers of the HKT kernels. Arguments have been checked.
#pragma once

#include "strata/hkt.h"

namespace strata {

struct HktCpuKernels {
  // Each returns false when its work space could not be had; nothing has been written then.
  bool (*forward)(const HktProblem& problem, const HktOutputs& outputs, int threads);
  bool (*backward)(const HktProblem& problem, const HktOutputs& outputs, const HktGradients& gradients, int threads);
  bool (*decode)(const HktDecode& decode, int threads);
};

namespace isa_portable {
extern const HktCpuKernels kHktKernels;
}
#ifdef STRATA_X86
namespace isa_avx2 {
extern const HktCpuKernels kHktKernels;
}
namespace isa_avx512 {
extern const HktCpuKernels kHktKernels;
}
#endif

}  // namespace strata
