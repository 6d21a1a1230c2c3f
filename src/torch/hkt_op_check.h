// Shape checks of the HKT operators, shared by the real and the meta kernels.
#pragma once

#include "torch/compat.h"

namespace strata {

// The inputs of the operator, taken together; `scale` filled in.
struct HktInputs {
  at::TensorList q, k;
  const at::Tensor& v;
  const at::Tensor& weights;
  const optional<at::Tensor>& lengths;
  const optional<at::Tensor>& bias;
  bool causal;
  double scale;

  int64_t levels() const { return static_cast<int64_t>(q.size()); }
  int64_t batch() const { return v.size(0); }
  int64_t heads() const { return q[0].size(1); }
  int64_t tokens() const { return v.size(2); }
};

inline double scale_or_default(const optional<double>& scale, at::TensorList q) {
  return scale.has_value() || q.empty() || q[0].dim() != 4 ? scale.value_or(1.0)
                                                           : 1.0 / std::sqrt(std::max<double>(1.0, q[0].size(3)));
}

void check_hkt(const HktInputs& inputs);

}  // namespace strata
