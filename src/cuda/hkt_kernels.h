// The CUDA kernels of HKT attention, one launcher per file. hkt_cuda.cc has checked the arguments and chosen the
// kernel; launchers queue everything on the stream.
#pragma once

#include <cuda_runtime_api.h>

#include "strata/hkt.h"

namespace strata::cuda {

// hkt_forward_sm90.cu, hkt_backward_sm90.cu: Hopper (sm_90a), bfloat16 and float16, 1 to 5 levels, heads up to 128
// channels, neither bias nor ALiBi nor dropout, aligned rows.
constexpr int kSm90Levels = 5, kSm90HeadSize = 128;
cudaError_t hkt_forward_sm90(const HktProblem& p, const HktOutputs& o, cudaStream_t stream);
int64_t hkt_backward_sm90_parts(const HktProblem& p);  // of da, per head
cudaError_t hkt_backward_sm90(const HktProblem& p, const HktOutputs& o, const HktGradients& g, const float* deltas,
                              float* weight_parts, cudaStream_t stream);

// hkt_backward_once_rows.cu: the whole backward where heads have up to 64 channels; every score is computed once.
constexpr int kOnceHeadSize = 64;
size_t hkt_backward_once_workspace(const HktProblem& p);
cudaError_t hkt_backward_once(const HktProblem& p, const HktOutputs& o, const HktGradients& g, void* workspace,
                              cudaStream_t stream);

// hkt_forward_mma.cuh, hkt_backward_mma.cuh: compute capability 8.0 and newer, bfloat16 and float16 (T), 1 to 5 levels,
// where a tile fits into shared memory.
constexpr int kMmaLevels = 5;
bool hkt_forward_fits_mma(const HktProblem& p);
template <class T>
cudaError_t hkt_forward_mma(const HktProblem& p, const HktOutputs& o, cudaStream_t stream);
bool hkt_backward_fits_mma(const HktProblem& p);
int64_t hkt_backward_mma_parts(const HktProblem& p);
template <class T>
cudaError_t hkt_backward_mma(const HktProblem& p, const HktOutputs& o, const HktGradients& g, const float* deltas,
                             float* weight_parts, cudaStream_t stream);

// hkt_backward_reduce.cu: around both of these. deltas: D of every row, laid out as lse. parts: (heads, parts,
// kMmaLevels).
cudaError_t hkt_backward_deltas(const HktProblem& p, const HktOutputs& o, const HktGradients& g, float* deltas,
                                cudaStream_t stream);
cudaError_t hkt_backward_weights(const HktProblem& p, const float* weight_parts, int64_t count, const HktGradients& g,
                                 cudaStream_t stream);

// hkt_simt.cu: any storage type, up to kMaxLevels levels, slow.
cudaError_t hkt_forward_simt(const HktProblem& p, const HktOutputs& o, cudaStream_t stream);
size_t hkt_backward_workspace_simt(const HktProblem& p);
cudaError_t hkt_backward_simt(const HktProblem& p, const HktOutputs& o, const HktGradients& g, void* workspace,
                              cudaStream_t stream);

}  // namespace strata::cuda
