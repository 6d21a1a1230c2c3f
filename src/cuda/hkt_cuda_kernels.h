// The CUDA kernels of HKT attention, one function per file. Arguments were checked (src/cuda/hkt_cuda.cc); everything
// is queued on the stream.
#pragma once

#include <cuda_runtime_api.h>

#include "strata/hkt.h"

namespace strata::cuda {

// bfloat16 and float16 storage (T), float32 sums, 1..5 levels, where a tile fits into shared memory.
constexpr int kMmaLevels = 5;
bool hkt_forward_fits_mma(const HktProblem& p);
template <class T>
cudaError_t hkt_forward_mma(const HktProblem& p, const HktOutputs& o, cudaStream_t stream);
bool hkt_backward_fits_mma(const HktProblem& p);
int64_t hkt_backward_mma_parts(const HktProblem& p);  // of da, per head
// workspace: floats, (batch, heads, tokens) for D and (batch, heads, parts, kMmaLevels) for the parts of da, where
// parts is the larger of the two kernels'.
template <class T>
cudaError_t hkt_backward_mma(const HktProblem& p, const HktOutputs& o, const HktGradients& g, float* workspace,
                             cudaStream_t stream);

// Hopper alone (sm_90a), and what fits: 1 to 3 levels, heads up to 128, no bias, rows of 16-byte pieces.
bool hkt_forward_fits_hopper(const HktProblem& p, const HktOutputs& o);
cudaError_t hkt_forward_hopper(const HktProblem& p, const HktOutputs& o, cudaStream_t stream);
bool hkt_backward_fits_hopper(const HktProblem& p, const HktGradients& g);
int64_t hkt_backward_hopper_parts(const HktProblem& p);  // of da, per head
// deltas: D of every row. weight_parts: (batch, heads, parts, 5).
cudaError_t hkt_backward_hopper(const HktProblem& p, const HktOutputs& o, const HktGradients& g, const float* deltas,
                                float* weight_parts, cudaStream_t stream);

// Any storage type and up to kMaxLevels levels, slowly.
cudaError_t hkt_forward_plain(const HktProblem& p, const HktOutputs& o, cudaStream_t stream);
size_t hkt_backward_workspace_plain(const HktProblem& p);
cudaError_t hkt_backward_plain(const HktProblem& p, const HktOutputs& o, const HktGradients& g, void* workspace,
                               cudaStream_t stream);

}  // namespace strata::cuda
