// Memory of the operators' large outputs on the CPU. The operating system hands out fresh memory page by page, which
// can take as long as the attention that is written there (docs/PERFORMANCE.md). Huge pages are handed out 2 MB at a
// time. STRATA_HUGE_PAGES=0 leaves this memory to torch.
#pragma once

#include <torch/torch.h>

namespace strata {

// From this size on. Smaller memory is reused by the C library.
constexpr size_t kLargeOutput = size_t{4} << 20;

// An uninitialised dense tensor on the CPU.
at::Tensor empty_large_output(at::IntArrayRef sizes, at::ScalarType type);

}  // namespace strata
