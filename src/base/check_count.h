#pragma once

#include <cstdint>

#include "strata/export.h"

namespace strata {

// How often arguments were checked in this thread: the tensors of an operator, the problem of a call. The tests count
// that a call does each once.
STRATA_API int64_t& argument_checks();

}  // namespace strata
