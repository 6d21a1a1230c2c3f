// The kernels of one instruction set. Their arguments have been checked.
#pragma once

#include "strata/hkt.h"
#include "strata/hsa.h"
#include "strata/hsa_stream.h"
#include "strata/pyramid.h"

namespace strata {

struct CpuKernels {
  // Each returns false if its work space could not be allocated; it has written nothing then.
  bool (*hkt_forward)(const HktProblem& problem, const HktOutputs& outputs, int threads);
  bool (*hkt_backward)(const HktProblem& problem, const HktOutputs& outputs, const HktGradients& gradients,
                       int threads);
  bool (*hkt_decode)(const HktDecode& decode, int threads);
  bool (*hkt_append)(const HktAppend& append);
  bool (*hsa_forward)(const HsaProblem& problem, const HsaOutputs& outputs, int threads);
  bool (*hsa_backward)(const HsaProblem& problem, const HsaGradients& gradients, int threads);
  bool (*hsa_stream_forward)(const HsaStreamProblem& problem, const HsaStreamOutputs& outputs, int threads);
  bool (*hsa_stream_backward)(const HsaStreamProblem& problem, const HsaStreamOutputs& outputs,
                              const HsaStreamGradients& gradients, int threads);
  bool (*causal_filter_forward)(const CausalFilter& filter, void* y, int threads);
  bool (*causal_filter_backward)(const CausalFilter& filter, const CausalFilterGradients& gradients, int threads);
  bool (*pyramid_step)(const PyramidStep& step);
};

namespace isa_portable {
extern const CpuKernels kKernels;
}
#ifdef STRATA_X86
namespace isa_avx2 {
extern const CpuKernels kKernels;
}
namespace isa_avx512 {
extern const CpuKernels kKernels;
}
namespace isa_avx512_bf16 {
extern const CpuKernels kKernels;
}
namespace isa_amx {
extern const CpuKernels kKernels;
}
#endif
namespace isa_amx_emulated {
extern const CpuKernels kKernels;
}

// The kernels of the current instruction set (src/cpu/cpu.cc).
const CpuKernels& cpu_kernels();
int threads_or_default(int threads);
Status kernel_status(bool had_memory, const char* mechanism);

}  // namespace strata
