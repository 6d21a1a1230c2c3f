// Runs problems on the device of their tensors: the CPU, or CUDA's current stream with memory of torch's allocator.
#pragma once

#include <string>
#include <vector>

#include "strata/export.h"
#include "strata/hkt.h"
#include "strata/hsa.h"
#include "strata/hsa_stream.h"
#include "strata/pyramid.h"
#include "torch/op_common.h"

namespace strata {

// `like` is one of the problem's tensors. All throw if the problem's checks fail.
void run_hkt_forward(const at::Tensor& like, const HktProblem& problem, const HktOutputs& outputs);
void run_hkt_backward(const at::Tensor& like, const HktProblem& problem, const HktOutputs& outputs,
                      const HktGradients& gradients);
// `trees`: the tensors that the problem's trees are views of; plans for the GPU are kept for as long as they live.
void run_hsa_forward(const at::Tensor& like, at::TensorList trees, const HsaProblem& problem,
                     const HsaOutputs& outputs);
void run_hsa_backward(const at::Tensor& like, at::TensorList trees, const HsaProblem& problem,
                      const HsaGradients& gradients);
void run_hsa_stream_forward(const at::Tensor& like, const HsaStreamProblem& problem, const HsaStreamOutputs& outputs);
void run_hsa_stream_backward(const at::Tensor& like, const HsaStreamProblem& problem, const HsaStreamOutputs& outputs,
                             const HsaStreamGradients& gradients);
void run_hsa_stream_certificate(const at::Tensor& like, const HsaStreamProblem& problem, void* bound);
void run_hsa_stream_step(const at::Tensor& like, const HsaStreamStep& step);
void run_causal_filter_forward(const at::Tensor& like, const CausalFilter& filter, void* y);
void run_causal_filter_backward(const at::Tensor& like, const CausalFilter& filter,
                                const CausalFilterGradients& gradients);

// Whether this build has the CUDA kernels.
STRATA_API bool built_with_cuda();
// Of the current CUDA device; empty if there is none.
STRATA_API std::string gpu_name();

// Which kernels the current CUDA device runs typical problems on; empty where there is none.
struct KernelsInUse {
  std::string problem, forward, backward;
};
STRATA_API std::vector<KernelsInUse> gpu_kernels();

}  // namespace strata
