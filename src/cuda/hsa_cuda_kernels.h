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

// The deepest families, `families` of them from number `first` on, where they fit: 16-bit storage, heads up to 128, at
// most 16 children, rows of 16-byte pieces.
bool hsa_leaves_fit(const HsaProblem& p, const HsaPlan& plan, const HsaOutputs& o);
template <class T>
struct HsaArgs;
template <class T>
void hsa_leaves(const HsaArgs<T>& a, const View& out, int64_t first, int64_t families, cudaStream_t stream);
template <class T>
void hsa_leaf_spread(const HsaArgs<T>& a, const View& out, int64_t first, int64_t families, bool root,
                     cudaStream_t stream);
// Backward: bottom-up, or (down) top-down. No gradient of weights and positions here.
bool hsa_leaves_backward_fit(const HsaProblem& p, const HsaPlan& plan, const HsaGradients& g);
template <class T>
cudaError_t hsa_leaves_backward(const HsaArgs<T>& a, const HsaGradients& g, int64_t first, int64_t families, bool down,
                                bool root, cudaStream_t stream);

}  // namespace strata::cuda
