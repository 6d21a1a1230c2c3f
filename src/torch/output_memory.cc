#include "torch/output_memory.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <cstdlib>
#include <string_view>

namespace strata {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

bool huge_pages_wanted() {
  static const bool wanted = [] {
    const char* given = std::getenv("STRATA_HUGE_PAGES");
    return given == nullptr || std::string_view(given) != "0";
  }();
  return wanted;
}

}  // namespace

at::Tensor empty_large_output(at::IntArrayRef sizes, at::ScalarType type) {
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  void* memory = nullptr;
  if (!huge_pages_wanted() || posix_memalign(&memory, kHugePage, bytes) != 0) return at::empty(sizes, type);
  // Whole huge pages only. Fails where the system has none, and the pages are small ones then.
  madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                       at::DataPtr(
                           memory, memory, [](void* freed) { std::free(freed); }, at::Device(at::kCPU)),
                       c10::GetCPUAllocator(), /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

}  // namespace strata
