// What the SIMT kernels share: a lane has channels lane, lane + 32, .. of a row.
#pragma once

#include <cmath>

#include "cuda/launch.cuh"
#include "cuda/storage.h"
#include "cuda/tile.cuh"
#include "cuda/warp.cuh"

namespace strata::cuda {

constexpr int kLaneChannels = kMaxHeadSize / 32;

// f(x, channel) for the channels of this lane that are below `channels`: number x of its registers.
template <class F>
__device__ inline void each_lane_channel(int channels, const F& f) {
#pragma unroll
  for (int x = 0; x < kLaneChannels; ++x) {
    const int channel = lane_of_thread() + 32 * x;
    if (channel < channels) f(x, channel);
  }
}

}  // namespace strata::cuda
