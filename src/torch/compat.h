// The differences between the libtorch generations that strata builds against (1.13 and 2.x), in one place.
#pragma once

#include <torch/library.h>
#include <torch/torch.h>

namespace strata {

// Operator schemas use c10::optional in 1.13; in 2.x that name is an alias of std::optional.
using c10::optional;

}  // namespace strata
