// The table of this instruction set's kernels, which src/core/hkt.cc chooses from.
#include "cpu/hkt_cpu.h"
#include "cpu/hkt_cpu_kernels.h"

namespace strata::STRATA_ISA {

const HktCpuKernels kHktKernels = {hkt_forward_cpu, hkt_backward_cpu, hkt_decode_cpu};

}  // namespace strata::STRATA_ISA
