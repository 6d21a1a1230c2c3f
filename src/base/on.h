#pragma once

namespace strata {

// Where the arrays of a problem lie. The contents of device memory (weights, lengths) are not checked.
enum class On { kHost, kDevice };

}  // namespace strata
