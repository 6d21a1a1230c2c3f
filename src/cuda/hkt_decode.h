// The CUDA kernels of HKT's decoding steps. hkt_decode_cuda.cc has checked the arguments.
#pragma once

#include <cuda_runtime_api.h>

#include "strata/hkt.h"

namespace strata::cuda {

// Blocks of a multiprocessor that registers must suffice for, where a lane reads `chunks` times 16 bytes of a row and a
// block has `heads` query heads.
constexpr int decode_blocks(int chunks, int heads, bool deep) {
  return heads > 1 ? 2 : chunks == 1 ? (deep ? 3 : 4) : chunks == 2 ? 3 : 2;
}

// Into how many parts the visible tokens of a sequence are split; the host does not know how many tokens there are.
int hkt_decode_splits(const HktDecode& d);

// hkt_decode_simt.cu. workspace: (batch, heads, splits, value_size + 2) of the compute type, unless splits is 1.
cudaError_t hkt_decode_simt(const HktDecode& d, void* workspace, cudaStream_t stream);

// decode_rows.cu
cudaError_t hkt_append_simt(const HktAppend& a, cudaStream_t stream);

}  // namespace strata::cuda
