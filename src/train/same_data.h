// Whether a run's data is still what its record says: path, bytes and SHA-256 of every file (util/digest.h).
#pragma once

#include <string>
#include <vector>

#include "util/options.h"

namespace strata {

// One line for every difference between the files that a record names and the files that are read now, both as
// describe_files() describes them. A file that only moved is no difference. others: other data was asked for, and only
// files that the record names are compared.
std::vector<std::string> data_changes(const Json& recorded, const Json& now, bool others = false);

// Throws a data error if there are differences. With `allowed` (--allow-changed-data) they are printed as warnings.
void check_same_data(const Json& recorded, const Json& now, bool allowed, bool others = false);

}  // namespace strata
