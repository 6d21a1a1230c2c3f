// The data of a page: the JSON files of a folder, combined. Missing and damaged parts are listed in "problems".
#pragma once

#include "util/options.h"

namespace strata {

Json collect_inspect(const fs::path& json);
Json collect_inject(const fs::path& json);
Json collect_eval(const fs::path& json);
Json collect_bench(const fs::path& json);
Json collect_train(const fs::path& folder);
Json collect_compare(const fs::path& folder);

}  // namespace strata
