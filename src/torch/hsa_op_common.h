// What the operators of both HSA forms share: checks, views, empty gradients.
#pragma once

#include <cmath>

#include "strata/hkt.h"
#include "torch/backward_node.h"
#include "torch/op_common.h"

namespace strata::hsa_op {

using at::Tensor;
using at::TensorList;

// What both forms take: q, k and the terms of the scores.
struct HsaInputs {
  TensorList q, k;  // by level
  const optional<Tensor>& v;
  const optional<Tensor>&weights, &key_bias, &positions, &level_weights;

  int64_t levels() const { return static_cast<int64_t>(q.size()); }
  bool has_open_sizes() const {
    return strata::has_open_sizes(q) || strata::has_open_sizes(k) || (v.has_value() && strata::has_open_sizes(*v));
  }
};

// rows(level): how many rows the level must have.
template <class Rows>
inline void check_inputs(const HsaInputs& in, const Rows& rows) {
  ++argument_checks();
  const int64_t L = in.levels();
  TORCH_CHECK(L >= 1 && L <= kMaxLevels && in.k.size() == in.q.size(), "q, k: expected 1 to ", kMaxLevels,
              " levels of each, as many of k as of q, got ", L, " and ", in.k.size());
  const Tensor &q = in.q[0], &k = in.k[0];
  TORCH_CHECK(q.dim() == 4, "q: expected 4 dimensions (batch, heads, tokens, channels), got shape ", q.sizes());
  TORCH_CHECK(k.dim() == 4, "k: expected 4 dimensions (batch, heads, tokens, channels), got shape ", k.sizes());
  const at::ScalarType type = q.scalar_type(), compute = compute_type(type);
  check_dtype("q", q);
  const int64_t B = q.size(0), H = q.size(1), T = q.size(2), d = q.size(3), key_heads = k.size(1);
  TORCH_CHECK(key_heads >= 1 ? H % key_heads == 0 : H == 0, "k: expected a number of heads that divides the ", H,
              " heads of q, got shape ", k.sizes());
  check_tensor("k", k, {B, key_heads, T, d}, type, q);
  for (int64_t l = 1; l < L; ++l) {
    const int64_t expected = rows(static_cast<int>(l));
    check_tensor("q[" + std::to_string(l) + "]", in.q[l], {B, H, expected, d}, type, q);
    check_tensor("k[" + std::to_string(l) + "]", in.k[l], {B, key_heads, expected, d}, type, q);
  }
  if (in.v.has_value()) {
    const Tensor& v = *in.v;
    TORCH_CHECK(v.dim() == 4, "v: expected 4 dimensions (batch, heads, tokens, channels), got shape ", v.sizes());
    check_tensor("v", v, {B, key_heads, T, v.size(3)}, type, q);
  }
  if (in.weights.has_value()) check_tensor("weights", *in.weights, {B, T}, compute, q);
  if (in.key_bias.has_value()) check_tensor("key_bias", *in.key_bias, {B, key_heads, T}, compute, q);
  TORCH_CHECK(L == 1 || in.level_weights.has_value(), "level_weights: expected shape (", H, ", ", L, ") for ", L,
              " levels, got none");
  if (in.level_weights.has_value()) check_tensor("level_weights", *in.level_weights, {H, L}, compute, q);
  if (in.positions.has_value()) check_tensor("positions", *in.positions, in.positions->sizes(), compute, q);
}

inline optional<Tensor> dense(const optional<Tensor>& t) {
  return t.has_value() ? optional<Tensor>(t->contiguous()) : c10::nullopt;
}

// (B, T) and (B, H, T) arrays as views over (batch, head, token, channel).
inline ConstView token_view(const Tensor& t) { return {t.data_ptr(), {t.stride(0), 0, t.stride(1), 1}}; }
inline View head_token_view(const Tensor& t) { return {t.data_ptr(), {t.stride(0), t.stride(1), t.stride(2), 1}}; }

// `in` must outlive the problem, and its terms be dense.
template <class Problem>
inline void fill_common(Problem& p, const HsaInputs& in, const optional<double>& scale) {
  const Tensor& q = in.q[0];
  p.dtype = dtype_of(q);
  p.heads = q.size(1);
  p.key_heads = in.k[0].size(1);
  p.levels = static_cast<int>(in.levels());
  p.head_size = static_cast<int>(q.size(3));
  p.value_size = in.v.has_value() ? static_cast<int>(in.v->size(3)) : p.head_size;
  for (int l = 0; l < p.levels; ++l) {
    p.q[l] = const_view(in.q[l]);
    p.k[l] = const_view(in.k[l]);
  }
  if (in.v.has_value()) p.v = const_view(*in.v);
  if (in.weights.has_value()) p.weights = token_view(*in.weights);
  if (in.key_bias.has_value()) p.key_bias = head_token_view(*in.key_bias);
  if (in.positions.has_value()) p.positions = in.positions->data_ptr();
  if (in.level_weights.has_value()) p.level_weights = in.level_weights->data_ptr();
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

// An output (batch, heads of q, tokens, channels of v) that lies in memory as v does.
inline Tensor empty_output(const Tensor& q, const Tensor& v) {
  return empty_with_layout(v, std::vector<c10::SymInt>{q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)});
}

// dq.., dk.., dv, dweights, dkey_bias, dpositions, dlevel_weights.
inline std::vector<Tensor> empty_gradients(const HsaInputs& in) {
  std::vector<Tensor> gradients;
  for (const TensorList& list : {in.q, in.k})
    for (const Tensor& t : list) gradients.push_back(empty_with_layout(t, t.sym_sizes()));
  gradients.push_back(empty_with_layout(*in.v, in.v->sym_sizes()));
  for (const optional<Tensor>* term : {&in.weights, &in.key_bias, &in.positions, &in.level_weights})
    gradients.push_back(empty_gradient(*term, in.q[0]));
  return gradients;
}

// The gradients as a problem's; those of the weights, per key head, are summed after the call.
template <class Gradients>
struct GradientViews {
  GradientViews(const HsaInputs& in, std::vector<Tensor>& all) : gradients(all), L(in.levels()) {
    for (int64_t l = 0; l < L; ++l) {
      g.dq[l] = view(all[l]);
      g.dk[l] = view(all[L + l]);
    }
    g.dv = view(all[2 * L]);
    if (in.weights.has_value()) {
      per_head = at::zeros({in.q[0].size(0), in.k[0].size(1), in.q[0].size(2)}, all[2 * L + 1].options());
      g.dweights = head_token_view(per_head);
    }
    if (in.key_bias.has_value()) g.dkey_bias = head_token_view(all[2 * L + 2]);
    if (in.positions.has_value()) g.dpositions = all[2 * L + 3].data_ptr();
    if (in.level_weights.has_value()) g.dlevel_weights = all[2 * L + 4].data_ptr();
  }
  void finish() {
    if (per_head.defined()) gradients[2 * L + 1] = per_head.sum(1);
  }
  std::vector<Tensor>& gradients;
  int64_t L;
  Tensor per_head;
  Gradients g;
};

// What a gradient may be asked of, in the order of empty_gradients; undefined where an argument was not given.
inline variable_list inputs_of(const HsaInputs& in) {
  variable_list inputs(in.q.begin(), in.q.end());
  inputs.insert(inputs.end(), in.k.begin(), in.k.end());
  inputs.insert(inputs.end(), {or_undefined(in.v), or_undefined(in.weights), or_undefined(in.key_bias),
                               or_undefined(in.positions), or_undefined(in.level_weights)});
  return inputs;
}

// These inputs as a node saved them, and what it saved after them.
struct SavedInputs {
  explicit SavedInputs(const variable_list& s, size_t outputs)
      : L((s.size() - 5 - outputs) / 2),
        all(s),
        v(s[2 * L]),
        weights(optional_tensor(s[2 * L + 1])),
        key_bias(optional_tensor(s[2 * L + 2])),
        positions(optional_tensor(s[2 * L + 3])),
        level_weights(optional_tensor(s[2 * L + 4])) {}
  TensorList q() const { return all.slice(0, L); }
  TensorList k() const { return all.slice(L, L); }
  const Tensor& output(size_t n) const { return all[2 * L + 5 + n]; }
  size_t L;
  TensorList all;
  Tensor v;
  optional<Tensor> weights, key_bias, positions, level_weights;
};

// The gradients of arguments that were not given are undefined.
inline variable_list of_given(variable_list gradients, const variable_list& inputs) {
  for (size_t at = 0; at < inputs.size() && at < gradients.size(); ++at) {
    if (!inputs[at].defined()) gradients[at] = Tensor();
  }
  return gradients;
}

}  // namespace strata::hsa_op
