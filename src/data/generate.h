// Sets that are generated instead of downloaded.
#pragma once

#include "data/config.h"

namespace strata {

// The folder of the set with these options. The second function generates the set first if it is missing, or `again`.
fs::path listops_folder(const DataConfig& config);
fs::path make_listops_set(const DataConfig& config, bool again);

}  // namespace strata
