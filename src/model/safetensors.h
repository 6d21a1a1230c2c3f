// Tensors on disk in the safetensors format: an 8-byte little-endian header length, a JSON header, raw data.
#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "strata/export.h"

namespace strata {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;
using Metadata = std::map<std::string, std::string>;

struct SafetensorsFile {
  NamedTensors tensors;  // in the order of their data
  Metadata metadata;
};

// Written to a temporary file first and then renamed, so that an interrupted write leaves the old file unchanged.
STRATA_API void save_safetensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata = {});

// Files that are written here carry a digest of all their bytes, under kDigestKey in the header's __metadata__. A file
// whose digest is wrong is refused, unless the check is skipped; files from elsewhere have none.
inline constexpr const char* kDigestKey = "strata.sha256";
enum class DigestCheck { kIfStored, kSkip };

// Every claim of the header is checked against the file before any data is read.
STRATA_API SafetensorsFile load_safetensors(const std::string& path, DigestCheck check = DigestCheck::kIfStored);
// The same, with tensors that are mapped into memory and read on first use (a stored digest is checked by reading all).
// Writing to them does not change the file; shortening the file while they are in use ends the program.
STRATA_API SafetensorsFile map_safetensors(const std::string& path, DigestCheck check = DigestCheck::kIfStored);

// A module's parameters and buffers under their state-dict names. Loading requires the same names and shapes.
STRATA_API void save_module(const torch::nn::Module& module, const std::string& path, const Metadata& metadata = {});
STRATA_API Metadata load_module(torch::nn::Module& module, const std::string& path);

}  // namespace strata
