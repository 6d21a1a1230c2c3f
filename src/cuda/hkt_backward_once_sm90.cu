// HKT backward on Hopper (sm_90a) for heads of up to 64 channels, filled up to D, 32 or 64: every score is computed
// once. A block owns 128 keys and goes through tiles of 64 queries. Two consumer warpgroups, of 64 keys each, compute P
// and dS in registers, where they are the left operands of dV and dK; dS also goes to shared memory, with its sums over
// the blocks of the coarse levels. There a third warpgroup, the reducer, multiplies it with the keys: dQ of the tile,
// over the block's keys, and the coarse dK.
//
// dQ is summed over blocks in fixed point, an int32 with a power of two for each row, by bulk reductions from shared
// memory. Sums of integers do not depend on their order, so that results are the same bits from run to run. No sum
// overflows, because |dQ_ic| <= (2 |dO_i| max_j |v_j| + |dlse_i|) max_j |k_jc|, and the powers are chosen by that bound
// (hkt_backward_once_rows.cu).
//
// Rows and columns of the tiles have the orders of hkt_backward_sm90.cu.
#include "cuda/device.h"
#include "cuda/hkt_backward_once_keys.cuh"
#include "cuda/hkt_backward_once_queries.cuh"
#include "cuda/hkt_kernels.h"
#include "cuda/launch.cuh"
#include "cuda/storage.h"

namespace strata::cuda {
namespace {

template <class T, int D, int kLevels>
__global__ void __launch_bounds__(kOnceThreads, 1) hkt_backward_once_kernel(const __grid_constant__ OnceArguments a) {
  extern __shared__ unsigned char raw[];
  const OnceBlock<kLevels> block{(shared_address(raw) + 1023) / 1024 * 1024};
  constexpr bool kCoarse = kLevels > 1;
  if (threadIdx.x == 0) {
    block.others().init(128, kGroups * 128 + (kCoarse ? 128 : 0));
    block.own().init(128, kGroups * 128 + 128);
    block.gradients().init(kGroups * 128, 128);
  }
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x < 128) {
    lower_register_budget<40>();
    produce_once<T, D>(a, block);
  } else if (threadIdx.x < 256) {
    if constexpr (kCoarse) {
      raise_register_budget<136>();
    } else {
      lower_register_budget<72>();
    }
    reduce_once<T, D>(a, block);
  } else {
    raise_register_budget<kCoarse ? 168 : 200>();
    consume_once<T, D>(a, block);
  }
}

template <class T, int D, int kLevels>
cudaError_t launch_once(const OnceArguments& a, cudaStream_t stream) {
  const auto kernel = hkt_backward_once_kernel<T, D, kLevels>;
  constexpr int kMemory = OnceLayout<kLevels>::kSize;
  if (const cudaError_t e = allow_shared_memory(kernel, kMemory); e != cudaSuccess) return e;
  const int64_t work_tiles = tile_count(key_side(a.p), kRows) * a.p.key_heads;
  kernel<<<persistent_grid(work_tiles, a.p.causal && a.p.tokens >= kLongSequence), kOnceThreads, kMemory, stream>>>(a);
  return cudaGetLastError();
}

template <class T, int D>
cudaError_t launch_levels(const OnceArguments& a, cudaStream_t stream) {
  if (a.p.levels == 1) return launch_once<T, D, 1>(a, stream);
  return a.p.levels <= 3 ? launch_once<T, D, 3>(a, stream) : launch_once<T, D, 5>(a, stream);
}

}  // namespace

cudaError_t hkt_backward_once_products(const OnceArguments& a, cudaStream_t stream) {
  return with_16_bit_storage(a.p.dtype, [&](auto storage) {
    using T = decltype(storage);
    return once_channels(a.p) == 32 ? launch_levels<T, 32>(a, stream) : launch_levels<T, 64>(a, stream);
  });
}

}  // namespace strata::cuda
