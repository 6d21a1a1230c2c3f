// Dropout whose draws belong to rows, not to a generator: a row of a batch drops the same elements in whatever batch,
// process or device it is computed.
#pragma once

#include <torch/torch.h>

namespace strata {

// x: (B, T, C), keys: (B) int64 on the same device. Element e = t C + c of row b is dropped where the first 32 bits of
// mix(keys[b] + place + e 2^8) are below 2^32 p (util/random.h); the others are divided by 1 - p. place: 0 .. 255,
// which dropout of the model this is.
torch::Tensor row_dropout(const torch::Tensor& x, double p, const torch::Tensor& keys, int64_t place);

// The factors, 0 or 1 / (1 - p), by torch's operators. row_dropout uses a loop on the CPU.
torch::Tensor row_dropout_factors(const torch::Tensor& x, double p, const torch::Tensor& keys, int64_t place);

}  // namespace strata
