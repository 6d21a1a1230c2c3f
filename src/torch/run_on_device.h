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
void run_hkt_decode(const at::Tensor& like, const HktDecode& decode);
void run_hkt_append(const at::Tensor& like, const HktAppend& append);
void run_pyramid_step(const at::Tensor& like, const PyramidStep& step);
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
// On CUDA only.
void run_pyramid_forward(const at::Tensor& like, const Pyramid& pyramid, const PyramidStates& states);
void run_pyramid_backward(const at::Tensor& like, const Pyramid& pyramid, const PyramidStates& states,
                          const PyramidGradients& gradients);

// Whether work on the device of `like` is being captured into a graph: it is then queued, and done with every replay.
bool is_captured(const at::Tensor& like);

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
