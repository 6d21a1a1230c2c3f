// The table of an instruction set that multiplies pairs of bfloat16: its own kernels for bfloat16, those of
// STRATA_BASE_ISA for everything else.
#include "cpu/hkt_pair_kernels.h"
#include "cpu/hkt_pair_tile.h"
#include "cpu/hsa_cpu_kernels.h"
#include "cpu/kernels.h"

namespace strata::STRATA_ISA {
namespace {

namespace base = STRATA_BASE_ISA;

bool hkt_forward(const HktProblem& p, const HktOutputs& outputs, int threads) {
  if (p.dtype == DType::kBFloat16 && pairs_take(p)) return hkt_forward_pairs(p, outputs, threads);
  return base::kKernels.hkt_forward(p, outputs, threads);
}
bool hkt_backward(const HktProblem& p, const HktOutputs& outputs, const HktGradients& g, int threads) {
  if (p.dtype == DType::kBFloat16 && pairs_take(p) && hkt_backward_pairs_take(p, outputs, g, threads))
    return hkt_backward_pairs(p, outputs, g, threads);
  return base::kKernels.hkt_backward(p, outputs, g, threads);
}
bool hkt_decode(const HktDecode& decode, int threads) { return base::kKernels.hkt_decode(decode, threads); }
bool hkt_append(const HktAppend& append) { return base::kKernels.hkt_append(append); }

bool hsa_forward(const HsaProblem& p, const HsaOutputs& outputs, int threads) {
  if (p.dtype == DType::kBFloat16) return hsa_forward_cpu(p, outputs, threads);
  return base::kKernels.hsa_forward(p, outputs, threads);
}
bool hsa_backward(const HsaProblem& p, const HsaGradients& g, int threads) {
  if (p.dtype == DType::kBFloat16) return hsa_backward_cpu(p, g, threads);
  return base::kKernels.hsa_backward(p, g, threads);
}
bool hsa_stream_forward(const HsaStreamProblem& p, const HsaStreamOutputs& outputs, int threads) {
  if (p.dtype == DType::kBFloat16) return hsa_stream_forward_cpu(p, outputs, threads);
  return base::kKernels.hsa_stream_forward(p, outputs, threads);
}
bool hsa_stream_backward(const HsaStreamProblem& p, const HsaStreamOutputs& outputs, const HsaStreamGradients& g,
                         int threads) {
  if (p.dtype == DType::kBFloat16) return hsa_stream_backward_cpu(p, outputs, g, threads);
  return base::kKernels.hsa_stream_backward(p, outputs, g, threads);
}

bool causal_filter_forward(const CausalFilter& filter, void* y, int threads) {
  return base::kKernels.causal_filter_forward(filter, y, threads);
}
bool causal_filter_backward(const CausalFilter& filter, const CausalFilterGradients& g, int threads) {
  return base::kKernels.causal_filter_backward(filter, g, threads);
}

bool pyramid_step(const PyramidStep& step) { return base::kKernels.pyramid_step(step); }

}  // namespace

const CpuKernels kKernels = {hkt_forward,           hkt_backward,           hkt_decode,         hkt_append,
                             hsa_forward,           hsa_backward,           hsa_stream_forward, hsa_stream_backward,
                             causal_filter_forward, causal_filter_backward, pyramid_step};

}  // namespace strata::STRATA_ISA
