// The CUDA kernels of HSA attention. Arguments were checked (src/cuda/hsa_cuda.cc); everything is queued on the stream.
#pragma once

#include <cuda_runtime_api.h>

#include "strata/cuda.h"

namespace strata::cuda {

constexpr int kHsaThreads = 128;

// Any tree, any storage type. numbers: HsaPlan::numbers on the device.
cudaError_t hsa_forward_any_tree(const HsaProblem& p, const HsaPlan& plan, const int32_t* numbers, const HsaOutputs& o,
                                 void* workspace, cudaStream_t stream);
cudaError_t hsa_backward_any_tree(const HsaProblem& p, const HsaPlan& plan, const int32_t* numbers,
                                  const HsaGradients& g, void* workspace, cudaStream_t stream);

// Trees of families of at most 16 children: 16-bit storage, heads up to 128, rows of 16-byte pieces.
// positions: the gradient of the position tables in fixed point (hsa_nodes.cuh), added to; null: not wanted.
template <class T>
struct HsaArgs;
bool hsa_families_are_small(const HsaProblem& p, const HsaPlan& plan, const View& out);
bool hsa_small_backward_fits(const HsaProblem& p, const HsaPlan& plan, const HsaGradients& g);
template <class T>
cudaError_t hsa_small_forward(const HsaArgs<T>& a, const HsaPlan& plan, const HsaOutputs& o, cudaStream_t stream);
template <class T>
cudaError_t hsa_small_backward(const HsaArgs<T>& a, const HsaPlan& plan, const HsaGradients& g, long long* positions,
                               cudaStream_t stream);

}  // namespace strata::cuda
