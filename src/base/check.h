// Argument checks that all mechanisms share. Each failure names the argument, what was expected, what came, what to do.
#pragma once

#include <initializer_list>
#include <string>

#include "base/on.h"
#include "strata/dropout.h"
#include "strata/status.h"
#include "strata/tensor.h"

namespace strata {

struct NamedPointer {
  std::string name;
  const void* data;
};
Status check_present(std::initializer_list<NamedPointer> pointers);

Status check_range(const char* name, int64_t value, int64_t low, int64_t high);

// What every problem has.
Status check_heads(int head_size, int value_size, double scale);
Status check_dtype(DType dtype, On on);
Status check_threads(int threads);

Status check_reference_dtype(DType dtype);
Status check_dropout(const Dropout& dropout);

}  // namespace strata
