// Sets that are made instead of downloaded.
#pragma once

#include "data/config.h"

namespace strata {

// Where the set of these options lives, and the same after it was made: once, or `again`.
fs::path listops_folder(const DataConfig& config);
fs::path make_listops_set(const DataConfig& config, bool again);

}  // namespace strata
