// What kernels ask of the memory that a problem points to.
#pragma once

#include <cstdint>

#include "strata/tensor.h"

namespace strata::cuda {

// Rows of numbers of `bytes` bytes can be read and written 16 bytes at a time; true of views that are not there.
inline bool is_aligned(const ConstView& view, int channels, int bytes = 2) {
  const int unit = 16 / bytes;
  return view.data == nullptr ||
         (view.stride[3] == 1 && channels % unit == 0 && reinterpret_cast<uintptr_t>(view.data) % 16 == 0 &&
          view.stride[0] % unit == 0 && view.stride[1] % unit == 0 && view.stride[2] % unit == 0);
}

// Addresses of a tile's rows differ by less than 2^31 bytes.
inline bool has_small_stride(const ConstView& view) { return view.stride[2] >= 0 && view.stride[2] < (1 << 22); }

}  // namespace strata::cuda
