// The table of this instruction set's kernels, which src/cpu/cpu.cc chooses from.
#include "cpu/causal_filter_cpu.h"
#include "cpu/hkt_cpu_kernels.h"
#include "cpu/hsa_cpu_kernels.h"
#include "cpu/kernels.h"

namespace strata::STRATA_ISA {

const CpuKernels kKernels = {
    hkt_forward_cpu,           hkt_backward_cpu,           hkt_decode_cpu,         hkt_append_cpu,
    hsa_forward_cpu,           hsa_backward_cpu,           hsa_stream_forward_cpu, hsa_stream_backward_cpu,
    causal_filter_forward_cpu, causal_filter_backward_cpu, pyramid_step_cpu};

}  // namespace strata::STRATA_ISA
