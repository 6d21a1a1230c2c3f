// What `strata inspect` prints of its result.
#pragma once

#include "util/options.h"

namespace strata {

// A line per layer and head, and below it what was checked.
void print_inspected(const Json& result);

}  // namespace strata
