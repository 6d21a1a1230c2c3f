// Config files as JSON values.
#pragma once

#include <nlohmann/json.hpp>

#include "util/file.h"

namespace strata {

// The object that a TOML or a JSON file (by its name) holds. Throws a usage error that names the file and, for TOML,
// the line.
nlohmann::ordered_json read_config(const fs::path& path);

}  // namespace strata
