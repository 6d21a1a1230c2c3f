// Work items over OpenMP threads, each thread with its own piece of one allocation. Which thread runs an item never
// changes its result, so the bits are the same at any number of threads.
#pragma once

#include <omp.h>
#include <stdlib.h>

#include "cpu/simd.h"

namespace strata::STRATA_ISA {

class Workspace {
 public:
  // A distance of one extra line keeps the threads' pieces off the same cache sets.
  Workspace(int64_t bytes_per_piece, int64_t pieces)
      : step_(round_up(bytes_per_piece, 64) + 64), base_(static_cast<char*>(aligned_alloc(64, step_ * pieces))) {}
  ~Workspace() { free(base_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  bool ok() const { return base_ != nullptr; }
  void* piece(int64_t index) const { return base_ + index * step_; }

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
