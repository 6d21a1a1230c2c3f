// Sets that are generated instead of downloaded.
#pragma once

#include "data/config.h"

namespace strata {

// Rows of generated data, unless the options say otherwise.
inline constexpr int64_t kTrainRows = 20000, kHeldOutRows = 2000;
inline int64_t rows_or(int64_t rows, int64_t otherwise) { return rows > 0 ? rows : otherwise; }

// The folder of the set with these options. The second function generates the set first if it is missing, or `again`.
fs::path listops_folder(const DataConfig& config);
fs::path make_listops_set(const DataConfig& config, bool again);

}  // namespace strata
