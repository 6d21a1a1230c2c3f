// The CUDA kernels of HSA attention. hsa_cuda.cc has checked the arguments and chosen the kernels; launchers queue
// everything on the stream.
#pragma once

#include <cuda_runtime_api.h>

#include "strata/cuda.h"

namespace strata::cuda {

// numbers: HsaPlan::numbers on the device.
struct HsaCall {
  const HsaProblem& p;
  const HsaPlan& plan;
  const int32_t* numbers;
  void* workspace;
  cudaStream_t stream;
};

// hsa_forward_mma.cu, hsa_backward_mma.cu: any tree, bfloat16 and float16, heads up to 128 channels, aligned rows. Wide
// families, of more than 16 children, have kernels of their own (hsa_wide_mma.cuh), a block per tile of their children.
constexpr int kNarrowFamily = 16, kMmaFamilyHeadSize = 128;
constexpr int kSmallTile = 32, kWideTile = 64;  // of trees without a wider family; of others
int hsa_mma_warps(const HsaProblem& p);  // that a block's shared memory has room for, forward and backward; 0: none
bool hsa_wide_mma_fits(const HsaProblem& p);
inline bool has_small_heads(const HsaProblem& p) { return p.head_size <= 64 && p.value_size <= 64; }
cudaError_t hsa_forward_mma(const HsaCall& call, const HsaOutputs& o);
cudaError_t hsa_backward_mma(const HsaCall& call, const HsaGradients& g);

// hsa_star.cu: trees that HKT's kernels compute. hsa_star() says whether these are such, and *hkt is then their
// problem.
bool hsa_star(const HsaProblem& p, const HsaPlan& plan, HktProblem* hkt);
size_t hsa_star_workspace(const HsaProblem& p, const HktProblem& hkt, bool backward);
Status hsa_star_forward(const HsaCall& call, HktProblem hkt, const HsaOutputs& o);
Status hsa_star_backward(const HsaCall& call, HktProblem hkt, const HsaGradients& g);

// hsa_forward_simt.cu, hsa_backward_simt.cu: any tree, any storage type.
cudaError_t hsa_forward_simt(const HsaCall& call, const HsaOutputs& o);
cudaError_t hsa_backward_simt(const HsaCall& call, const HsaGradients& g);

}  // namespace strata::cuda
