// Torch says in words that memory is missing.
#pragma once

#include <c10/util/Exception.h>

#include <new>
#include <string>

namespace strata {

// Throws std::bad_alloc if that is what an error of torch means. To be called before the error is taken for another.
inline void throw_if_out_of_memory(const c10::Error& error) {
  const std::string words = error.what_without_backtrace();
  if (words.find("DefaultCPUAllocator: ") != std::string::npos) throw std::bad_alloc();
}

}  // namespace strata
