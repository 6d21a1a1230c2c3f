#include "base/check_count.h"

namespace strata {

int64_t& argument_checks() {
  thread_local int64_t count = 0;
  return count;
}

}  // namespace strata
