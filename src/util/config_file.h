// Config files as JSON values.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "util/file.h"

namespace strata {

struct ConfigFile {
  nlohmann::ordered_json values;         // an object
  std::map<std::string, int64_t> lines;  // of the keys, each with its sections: "/section/key"
};

// Reads a TOML or a JSON file, by its name. Throws a usage error that names the file and the line.
ConfigFile read_config(const fs::path& path);

}  // namespace strata
