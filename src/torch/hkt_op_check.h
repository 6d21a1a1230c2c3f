// The inputs of the HKT operators, and their checks, shared by the real and the meta kernels.
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
  const optional<at::Tensor>& key_lengths;
  const optional<at::Tensor>& cu_seqlens;
  const optional<at::Tensor>& key_cu_seqlens;
  int64_t max_seqlen, key_max_seqlen;
  int64_t window_left, window_right;
  const optional<at::Tensor>& slopes;
  double dropout;
  const optional<at::Tensor>& dropout_state;

  int64_t levels() const { return static_cast<int64_t>(q.size()); }
  bool packed() const { return cu_seqlens.has_value(); }
  int64_t sequences() const { return packed() ? cu_seqlens->size(0) - 1 : v.size(0); }
  int64_t heads() const { return q[0].size(1); }
  int64_t rows() const { return q[0].size(2); }  // of all sequences, where they are packed
  int64_t key_rows() const { return v.size(2); }
  const optional<at::Tensor>& keys_cu_seqlens() const {
    return key_cu_seqlens.has_value() ? key_cu_seqlens : cu_seqlens;
  }
  // Where both sides have the same number of tokens they are taken for one sequence, unless the keys' lengths are
  // given.
  bool shares_lengths() const { return !key_lengths.has_value() && rows() == key_rows(); }
};

inline double scale_or_default(const optional<double>& scale, at::TensorList q) {
  return scale.has_value() || q.empty() || q[0].dim() != 4 ? scale.value_or(1.0)
                                                           : 1.0 / std::sqrt(std::max<double>(1.0, q[0].size(3)));
}

void check_hkt(const HktInputs& inputs);

}  // namespace strata
