// TensorBoard event files with scalars.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "util/file.h"

namespace strata {

class EventFile {
 public:
  explicit EventFile(const fs::path& folder);  // creates a file in it; throws an output error
  void add(const std::string& tag, int64_t step, double value);

 private:
  void write_record(const std::string& event);
  std::unique_ptr<AppendFile> out_;
};

// CRC-32C (Castagnoli), the checksum of the records.
uint32_t crc32c(std::string_view bytes);

}  // namespace strata
