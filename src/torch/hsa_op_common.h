// What the operators of both HSA forms share: checks, views, empty gradients.
#pragma once

#include <cmath>

#include "torch/op_common.h"

namespace strata::hsa_op {

using at::Tensor;
using at::TensorList;

inline void check_qkv(const Tensor& q, const Tensor& k, const optional<Tensor>& v) {
  ++argument_checks();
  TORCH_CHECK(q.dim() == 4, "q: expected 4 dimensions (batch, heads, tokens, channels), got shape ", q.sizes());
  const at::ScalarType type = q.scalar_type();
  check_dtype("q", q);
  check_tensor("k", k, q.sizes(), type, q);
  if (!v.has_value()) return;
  TORCH_CHECK(v->dim() == 4, "v: expected 4 dimensions (batch, heads, tokens, channels), got shape ", v->sizes());
  check_tensor("v", *v, {q.size(0), q.size(1), q.size(2), v->size(3)}, type, q);
}

inline void check_terms(const Tensor& q, const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                        const optional<Tensor>& positions) {
  const at::ScalarType compute = compute_type(q.scalar_type());
  if (weights.has_value()) check_tensor("weights", *weights, {q.size(0), q.size(2)}, compute, q);
  if (key_bias.has_value()) check_tensor("key_bias", *key_bias, {q.size(0), q.size(1), q.size(2)}, compute, q);
  if (positions.has_value()) {
    TORCH_CHECK(positions->dim() == 4 && positions->size(0) == q.size(1) && positions->size(2) == positions->size(3),
                "positions: expected shape (", q.size(1), ", tables, places, places), got ", positions->sizes());
    check_tensor("positions", *positions, positions->sizes(), compute, q);
  }
}

inline optional<Tensor> dense(const optional<Tensor>& t) {
  return t.has_value() ? optional<Tensor>(t->contiguous()) : c10::nullopt;
}

// (B, T) and (B, H, T) arrays as views over (batch, head, token, channel).
inline ConstView token_view(const Tensor& t) { return {t.data_ptr(), {t.stride(0), 0, t.stride(1), 1}}; }
inline View head_token_view(const Tensor& t) { return {t.data_ptr(), {t.stride(0), t.stride(1), t.stride(2), 1}}; }

template <class Problem>
inline void fill_common(Problem& p, const Tensor& q, const Tensor& k, const optional<Tensor>& v,
                        const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                        const optional<Tensor>& positions, const optional<double>& scale) {
  p.dtype = dtype_of(q);
  p.heads = q.size(1);
  p.head_size = static_cast<int>(q.size(3));
  p.value_size = v.has_value() ? static_cast<int>(v->size(3)) : p.head_size;
  p.q = const_view(q);
  p.k = const_view(k);
  if (v.has_value()) p.v = const_view(*v);
  if (weights.has_value()) p.weights = token_view(*weights);
  if (key_bias.has_value()) p.key_bias = head_token_view(*key_bias);
  if (positions.has_value()) p.positions = positions->data_ptr();
  p.scale = scale.value_or(1.0 / std::sqrt(std::max<double>(1.0, static_cast<double>(q.size(3)))));
  p.threads = at::get_num_threads();
}

inline Tensor compute_empty(at::IntArrayRef sizes, const Tensor& q) {
  return at::empty(sizes, q.options().dtype(compute_type(q.scalar_type())));
}

// dq, dk, dv, dweights, dkey_bias, dpositions; the last three are empty tensors where there is no such input.
inline std::vector<Tensor> empty_gradients(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                           const optional<Tensor>& positions) {
  const std::vector<int64_t> none = {0};
  return {empty_with_layout(q, q.sizes()),
          empty_with_layout(k, k.sizes()),
          empty_with_layout(v, v.sizes()),
          compute_empty(weights.has_value() ? weights->sizes() : at::IntArrayRef(none), q),
          compute_empty(key_bias.has_value() ? key_bias->sizes() : at::IntArrayRef(none), q),
          compute_empty(positions.has_value() ? positions->sizes() : at::IntArrayRef(none), q)};
}

}  // namespace strata::hsa_op
