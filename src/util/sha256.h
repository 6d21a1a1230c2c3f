// SHA-256. Needs nothing but the standard library, so that libstrata_torch can use it, too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace strata {

// FIPS 180-4, incrementally: update() any number of times, then hex() once.
class Sha256 {
 public:
  Sha256();
  void update(std::string_view bytes);
  std::string hex();

 private:
  void add_block(const unsigned char* block);

  uint32_t state_[8];
  unsigned char pending_[64];
  uint64_t bytes_ = 0;
};

std::string sha256_of(std::string_view bytes);

}  // namespace strata
