// Plain descriptions of memory that the caller owns. Nothing here allocates, copies or frees.
#pragma once

#include <cstdint>

namespace strata {

// How numbers are stored. Sums are taken in the *compute type*: double for kFloat64, float for the others. kFloat16 is
// supported on CUDA only.
enum class DType { kFloat32, kFloat64, kBFloat16, kFloat16 };

// Strided views of a (batch, head, token, channel) array; strides count elements, and a stride of 0 broadcasts. Packed
// sequences of different lengths lie one after the other, (head, row, channel): sequence b starts at row begins[b], and
// stride[0] is not used.
struct ConstView {
  const void* data = nullptr;
  int64_t stride[4] = {0, 0, 0, 0};
  const int64_t* begins = nullptr;  // (batch), where the kernels run; null: not packed
};

struct View {
  void* data = nullptr;
  int64_t stride[4] = {0, 0, 0, 0};
  const int64_t* begins = nullptr;
  operator ConstView() const {  // NOLINT: like pointers
    return {data, {stride[0], stride[1], stride[2], stride[3]}, begins};
  }
};

// Views of a dense row-major (batch, heads, tokens, channels) array; the strides do not depend on the batch size.
inline View dense_view(void* data, int64_t heads, int64_t tokens, int64_t channels) {
  return {data, {heads * tokens * channels, tokens * channels, channels, 1}};
}
inline ConstView dense_view(const void* data, int64_t heads, int64_t tokens, int64_t channels) {
  return {data, {heads * tokens * channels, tokens * channels, channels, 1}};
}

}  // namespace strata
