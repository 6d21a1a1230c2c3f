// The work of `strata data check`.
#pragma once

#include "data/config.h"

namespace strata {

// Reads a whole set and prints what is in it. Throws a data error if a row is unusable or a file was changed.
void check_data(DataConfig config, bool json_wanted);

}  // namespace strata
