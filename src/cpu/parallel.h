// Work items over OpenMP threads, each thread with its own part of one allocation. The result of an item never depends
// on the thread that runs it, so the bits are the same at any number of threads.
#pragma once

#include <omp.h>
#include <stdlib.h>

#include "cpu/simd.h"

namespace strata::STRATA_ISA {

class Workspace {
 public:
  // One extra cache line between the threads' parts keeps them in different cache sets.
  Workspace(int64_t bytes_per_slice, int64_t slices)
      : step_(round_up(bytes_per_slice, 64) + 64), base_(static_cast<char*>(aligned_alloc(64, step_ * slices))) {}
  ~Workspace() { free(base_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  bool ok() const { return base_ != nullptr; }
  void* slice(int64_t index) const { return base_ + index * step_; }

 private:
  int64_t step_;
  char* base_;
};

// body(item, thread)
template <class Body>
void parallel_items(int64_t items, int threads, const Body& body) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t item = 0; item < items; ++item) body(item, omp_get_thread_num());
}

}  // namespace strata::STRATA_ISA
