// Copies of the tests' arrays on the GPU, and the skip where there is none.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <vector>

#include "cases/array.h"
#include "strata/cuda.h"

#define STRATA_NEEDS_GPU() \
  if (const Status gpu = cuda::available(); !gpu.ok()) GTEST_SKIP() << "CUDA tests skipped: " << gpu.message()

namespace strata::test {

// Bytes a block may have on chips that are not here, and on one that has no room for tiles at all.
constexpr int kSharedMemoryOfChips[] = {163 * 1024, 99 * 1024, 32 * 1024};  // 8.0; 8.6, 8.9 and 12.0; none

struct SharedMemoryLimit {
  explicit SharedMemoryLimit(int bytes) { cuda::limit_shared_memory(bytes); }
  ~SharedMemoryLimit() { cuda::limit_shared_memory(std::numeric_limits<int>::max()); }
};

struct Float16 {
  __half value;
  Float16() : value(0.0f) {}
  Float16(double number) : value(static_cast<float>(number)) {}  // NOLINT: converts like the built-in types
  operator double() const { return static_cast<double>(__half2float(value)); }  // NOLINT
};
template <>
struct TypeOf<Float16> {
  static constexpr DType kDType = DType::kFloat16;
  using Compute = float;
};

inline void expect_cuda(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

// Host ranges with a twin on the device. Pointers into a range are translated; the ranges written to are fetched back.
class Mirror {
 public:
  ~Mirror() {
    for (const Range& range : ranges_) cudaFree(range.device);
  }

  template <class S>
  void add(Array<S>& array) {
    if (!array.raw().empty()) add(array.raw().data(), array.raw().size() * sizeof(S));
  }
  void add(const void* host, size_t bytes) {
    Range range{static_cast<char*>(const_cast<void*>(host)), bytes, nullptr};
    expect_cuda(cudaMalloc(reinterpret_cast<void**>(&range.device), bytes));
    expect_cuda(cudaMemcpy(range.device, host, bytes, cudaMemcpyHostToDevice));
    ranges_.push_back(range);
  }
  void* scratch(size_t bytes) {
    Range range{nullptr, 0, nullptr};
    expect_cuda(cudaMalloc(reinterpret_cast<void**>(&range.device), bytes + 256));
    expect_cuda(cudaMemset(range.device, 0xff, bytes + 256));  // NaN
    ranges_.push_back(range);
    return range.device;
  }

  template <class P>
  P* translate(P* pointer) const {
    const char* at = reinterpret_cast<const char*>(pointer);
    for (const Range& range : ranges_) {
      if (range.host != nullptr && at >= range.host && at < range.host + range.bytes)
        return reinterpret_cast<P*>(range.device + (at - range.host));
    }
    EXPECT_EQ(pointer, nullptr) << "this array has no twin on the device";
    return nullptr;
  }
  template <class AnyView>
  void translate_view(AnyView& view) const {
    view.data = translate(static_cast<decltype(view.data)>(view.data));
    view.begins = translate(view.begins);
  }

  template <class S>
  void fetch(Array<S>& array) const {
    auto& raw = const_cast<std::vector<S>&>(array.raw());
    if (!raw.empty()) {
      expect_cuda(cudaMemcpy(raw.data(), translate(raw.data()), raw.size() * sizeof(S), cudaMemcpyDeviceToHost));
    }
  }

 private:
  struct Range {
    char* host;
    size_t bytes;
    char* device;
  };
  std::vector<Range> ranges_;
};

}  // namespace strata::test
