// Layer norm of the models around the attention.
#pragma once

#include <torch/torch.h>

#include "strata/export.h"

namespace strata {

// Over the last dimension of x. On CUDA in float32 by our own kernels (strata/cuda.h), elsewhere torch's.
STRATA_API at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon);

}  // namespace strata
