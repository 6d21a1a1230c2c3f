#pragma once

namespace strata {

// Where the arrays of a problem lie. What device memory holds (weights, lengths) is not looked at.
enum class On { kHost, kDevice };

}  // namespace strata
