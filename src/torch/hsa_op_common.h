// What the operators of both HSA forms share: checks, views, empty gradients.
#pragma once

#include <cmath>

#include "torch/backward_node.h"
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
  p.heads = p.key_heads = q.size(1);
  p.head_size = static_cast<int>(q.size(3));
  p.value_size = v.has_value() ? static_cast<int>(v->size(3)) : p.head_size;
  p.q[0] = const_view(q);
  p.k[0] = const_view(k);
  if (v.has_value()) p.v = const_view(*v);
  if (weights.has_value()) p.weights = token_view(*weights);
  if (key_bias.has_value()) p.key_bias = head_token_view(*key_bias);
  if (positions.has_value()) p.positions = positions->data_ptr();
  p.scale = scale.value_or(1.0 / std::sqrt(std::max<double>(1.0, static_cast<double>(q.size(3)))));
  p.threads = at::get_num_threads();
}

inline Tensor compute_empty(const std::vector<c10::SymInt>& sizes, const Tensor& q) {
  return empty_open(sizes, q.options().dtype(compute_type(q.scalar_type())));
}

// An uninitialised gradient of an argument in the type of computation; an empty tensor where there is no argument.
inline Tensor empty_gradient(const optional<Tensor>& argument, const Tensor& q) {
  return argument.has_value() ? compute_empty(argument->sym_sizes().vec(), q) : compute_empty({0}, q);
}

// dq, dk, dv, dweights, dkey_bias, dpositions.
inline std::vector<Tensor> empty_gradients(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                                           const optional<Tensor>& positions) {
  return {empty_with_layout(q, q.sym_sizes()), empty_with_layout(k, k.sym_sizes()), empty_with_layout(v, v.sym_sizes()),
          empty_gradient(weights, q),          empty_gradient(key_bias, q),         empty_gradient(positions, q)};
}

// What a gradient may be asked of; undefined where an argument was not given.
inline variable_list inputs_of(const Tensor& q, const Tensor& k, const optional<Tensor>& v,
                               const optional<Tensor>& weights, const optional<Tensor>& key_bias,
                               const optional<Tensor>& positions) {
  return {q, k, or_undefined(v), or_undefined(weights), or_undefined(key_bias), or_undefined(positions)};
}

// The gradients of arguments that were not given are undefined.
inline variable_list of_given(variable_list gradients, const variable_list& inputs) {
  for (size_t at = 0; at < inputs.size() && at < gradients.size(); ++at) {
    if (!inputs[at].defined()) gradients[at] = Tensor();
  }
  return gradients;
}

}  // namespace strata::hsa_op
