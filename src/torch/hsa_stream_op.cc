// The streaming form of HSA as operators: schema, CPU, CUDA and meta kernels, autograd, and the decoding step.
#include "strata/hsa_stream.h"
#include "torch/compat.h"
#include "torch/hsa_op.h"
#include "torch/hsa_stream_problem.h"
#include "torch/run_on_device.h"

namespace strata {
namespace {

using at::Tensor;
using at::TensorList;
using namespace hsa_op;  // NOLINT: the helpers of the two HSA operators

// What all signatures below end with, as parameters and as arguments. Tensors come first: torch.vmap takes none by
// keyword.
#define STRATA_STREAM_PARAMETERS                                                                                       \
  int64_t branching, const optional<Tensor>&weights, const optional<Tensor>&key_bias,                                  \
      const optional<Tensor>&positions, const optional<Tensor>&level_weights, const optional<Tensor>&cu_seqlens,       \
      const optional<Tensor>&dropout_state, int64_t near, bool both_sides, optional<double> scale, int64_t max_seqlen, \
      double dropout
#define STRATA_STREAM_ARGUMENTS                                                                               \
  branching, weights, key_bias, positions, level_weights, cu_seqlens, dropout_state, near, both_sides, scale, \
      max_seqlen, dropout
#define STRATA_STREAM_SHAPE \
  StreamShape { branching, near, both_sides, cu_seqlens, max_seqlen, dropout, dropout_state }

std::tuple<Tensor, Tensor> hsa_stream_meta(TensorList q, TensorList k, const Tensor& v, STRATA_STREAM_PARAMETERS) {
  (void)scale;
  const optional<Tensor> values = v;
  const HsaInputs in{q, k, values, weights, key_bias, positions, level_weights};
  if (!in.has_open_sizes()) check_stream(in, STRATA_STREAM_SHAPE);
  return {empty_output(q[0], v), compute_empty({q[0].sym_size(0), q[0].sym_size(1), q[0].sym_size(2)}, q[0])};
}

std::tuple<Tensor, Tensor> hsa_stream_run(TensorList q, TensorList k, const Tensor& v, STRATA_STREAM_PARAMETERS) {
  auto [out, lse] = hsa_stream_meta(q, k, v, STRATA_STREAM_ARGUMENTS);
  const optional<Tensor> values = v;
  const StreamProblem problem({q, k, values, weights, key_bias, positions, level_weights}, STRATA_STREAM_SHAPE, scale);
  run_hsa_stream_forward(v, problem.p, {problem.packed.packed(view(out)), lse.data_ptr()});
  return {out, lse};
}

// Coarse levels of packed sequences have rows that belong to none, whose gradients are zero.
std::vector<Tensor> empty_stream_gradients(const HsaInputs& in, bool packed) {
  std::vector<Tensor> gradients = empty_gradients(in);
  for (int64_t l = 1; l < in.levels() && packed; ++l) {
    gradients[l].zero_();
    gradients[in.levels() + l].zero_();
  }
  return gradients;
}

std::vector<Tensor> hsa_stream_backward_meta(const Tensor&, const optional<Tensor>&, TensorList q, TensorList k,
                                             const Tensor& v, const Tensor&, const Tensor&, STRATA_STREAM_PARAMETERS) {
  (void)branching, (void)near, (void)both_sides, (void)scale, (void)max_seqlen, (void)dropout, (void)dropout_state;
  const optional<Tensor> values = v;
  return empty_stream_gradients({q, k, values, weights, key_bias, positions, level_weights}, cu_seqlens.has_value());
}

std::vector<Tensor> hsa_stream_backward_run(const Tensor& dout, const optional<Tensor>& dlse, TensorList q,
                                            TensorList k, const Tensor& v, const Tensor& out, const Tensor& lse,
                                            STRATA_STREAM_PARAMETERS) {
  const optional<Tensor> values = v;
  const HsaInputs in{q, k, values, weights, key_bias, positions, level_weights};
  const StreamShape shape = STRATA_STREAM_SHAPE;
  check_stream(in, shape);
  std::vector<Tensor> gradients = empty_stream_gradients(in, cu_seqlens.has_value());
  const StreamProblem problem(in, shape, scale);
  const PackedSequences& packed = problem.packed;
  const Tensor typed_dout = dout.to(v.scalar_type()), dense_lse = lse.contiguous();
  const Tensor dense_dlse = dlse.has_value() ? dlse->to(compute_type(v.scalar_type())).contiguous() : Tensor();
  GradientViews<HsaStreamGradients> views(in, gradients);
  views.g.dout = packed.packed(const_view(typed_dout));
  views.g.dlse = dense_dlse.defined() ? dense_dlse.data_ptr() : nullptr;
  for (int l = 0; l < problem.p.levels; ++l) {
    views.g.dq[l] = packed.packed(views.g.dq[l], l);
    views.g.dk[l] = packed.packed(views.g.dk[l], l);
  }
  for (View* gradient : {&views.g.dv, &views.g.dweights, &views.g.dkey_bias}) *gradient = packed.packed(*gradient);
  run_hsa_stream_backward(v, problem.p, {packed.packed(view(out)), dense_lse.data_ptr()}, views.g);
  views.finish();
  return gradients;
}

Tensor hsa_stream_step_meta(const Tensor& q, const Tensor&, const Tensor& v, const optional<Tensor>&,
                            const optional<Tensor>&, const optional<Tensor>&, const Tensor&, const Tensor&,
                            const Tensor&, const Tensor&, const Tensor&, const optional<Tensor>&, int64_t, int64_t,
                            optional<double>) {
  TORCH_CHECK(q.dim() == 3 && v.dim() == 3, "q, v: expected shape (batch, heads, channels), got ", q.dim(), " and ",
              v.dim(), " dimensions");
  return empty_open({q.sym_size(0), q.sym_size(1), v.sym_size(2)}, q.options());
}

// One decoding step; keys, values, kappas, masses and lengths are updated in place.
Tensor hsa_stream_step_run(const Tensor& q, const Tensor& k, const Tensor& v, const optional<Tensor>& weight,
                           const optional<Tensor>& key_bias, const optional<Tensor>& positions, const Tensor& keys,
                           const Tensor& values, const Tensor& kappas, const Tensor& masses, const Tensor& lengths,
                           const optional<Tensor>& level_weights, int64_t levels, int64_t near,
                           optional<double> scale) {
  TORCH_CHECK(q.dim() == 3 && k.dim() == 3 && keys.dim() == 5, "q: expected shape (batch, heads, channels), got ",
              q.sizes());
  TORCH_CHECK(levels >= 1 && levels <= kMaxLevels && q.size(2) % levels == 0, "levels: expected 1 to ", kMaxLevels,
              ", and a divisor of the ", q.size(2), " channels of q, got ", levels);
  const int64_t B = q.size(0), H = q.size(1), key_heads = k.size(1), width = q.size(2), dv = v.size(-1);
  const int64_t capacity = keys.size(2), ring = keys.size(3);
  TORCH_CHECK(near >= 1 && ring % near == 0, "near: expected a divisor of the ", ring, " slots of a height, got ",
              near);
  const int64_t b = ring / near;
  const at::ScalarType type = q.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kDouble, "q: decoding expects float32 or float64, got ", type);
  TORCH_CHECK(v.dim() == 3, "v: expected shape (batch, heads, channels), got ", v.sizes());
  check_tensor("k", k, {B, key_heads, width}, type, q);
  check_tensor("v", v, {B, key_heads, dv}, type, q);
  check_tensor("keys", keys, {B, key_heads, capacity, ring, width}, type, q);
  check_tensor("values", values, {B, key_heads, capacity, ring, dv}, type, q);
  check_tensor("kappas", kappas, {B, key_heads, capacity, ring}, type, q);
  check_tensor("masses", masses, {B, capacity, ring}, type, q);
  check_tensor("lengths", lengths, {B}, at::kLong, q);
  if (weight.has_value()) check_tensor("weight", *weight, {B}, type, q);
  if (key_bias.has_value()) check_tensor("key_bias", *key_bias, {B, key_heads}, type, q);
  if (level_weights.has_value()) check_tensor("level_weights", *level_weights, {H, levels}, type, q);
  if (positions.has_value()) {
    const std::vector<int64_t> sizes =
        positions->dim() == 5 ? std::vector<int64_t>{H, positions->size(1), near, b, b}
                              : std::vector<int64_t>{H, positions->dim() > 1 ? positions->size(1) : 0, b, b};
    TORCH_CHECK(near == 1 || positions->dim() == 5, "positions: expected shape (", H, ", heights, ", near, ", ", b,
                ", ", b, "), got ", positions->sizes());
    check_tensor("positions", *positions, sizes, type, q);
  }
  for (const Tensor* cache : {&keys, &values, &kappas, &masses, &lengths}) {
    TORCH_CHECK(cache->is_contiguous(), "cache: expected contiguous tensors, because they are updated in place");
  }
  const Tensor dense_q = q.contiguous(), dense_k = k.contiguous(), dense_v = v.contiguous();
  const optional<Tensor> dense_weight = dense(weight), dense_bias = dense(key_bias), dense_positions = dense(positions),
                         dense_levels = dense(level_weights);
  auto data = [](const optional<Tensor>& t) -> const void* { return t.has_value() ? t->data_ptr() : nullptr; };
  const Tensor out = at::empty({B, H, dv}, q.options());
  HsaStreamStep s;
  s.dtype = dtype_of(q);
  s.batch = B;
  s.heads = H;
  s.key_heads = key_heads;
  s.branching = static_cast<int>(b);
  s.near = static_cast<int>(near);
  s.levels = static_cast<int>(levels);
  s.head_size = static_cast<int>(width / levels);
  s.value_size = static_cast<int>(dv);
  s.capacity = capacity;
  s.q = dense_q.data_ptr();
  s.k = dense_k.data_ptr();
  s.v = dense_v.data_ptr();
  s.weight = data(dense_weight);
  s.key_bias = data(dense_bias);
  s.positions = data(dense_positions);
  s.level_weights = data(dense_levels);
  s.heights = positions.has_value() ? positions->size(1) : 0;
  s.scale = scale.value_or(1.0 / std::sqrt(std::max<double>(1.0, static_cast<double>(s.head_size))));
  s.keys = keys.data_ptr();
  s.values = values.data_ptr();
  s.kappas = kappas.data_ptr();
  s.masses = masses.data_ptr();
  s.lengths = lengths.data_ptr<int64_t>();
  s.out = out.data_ptr();
  run_hsa_stream_step(q, s);
  return out;
}

// ------------------------------------------------------------------------------------------------- autograd

std::vector<Tensor> hsa_stream_backward_autograd(const Tensor& dout, const optional<Tensor>& dlse, TensorList q,
                                                 TensorList k, const Tensor& v, const Tensor& out, const Tensor& lse,
                                                 STRATA_STREAM_PARAMETERS) {
  std::vector<Tensor> gradients = call_below_autograd("strata::hsa_stream_attention_backward", hsa_stream_backward_run,
                                                      v, dout, dlse, q, k, v, out, lse, STRATA_STREAM_ARGUMENTS);
  const optional<Tensor> values = v;
  variable_list inputs = inputs_of({q, k, values, weights, key_bias, positions, level_weights});
  inputs.insert(inputs.end(), {dout, or_undefined(dlse), out, lse});
  refuse_second_derivative("strata::hsa_stream_attention", inputs, gradients);
  return gradients;
}

std::tuple<Tensor, Tensor> hsa_stream_autograd(TensorList q, TensorList k, const Tensor& v, STRATA_STREAM_PARAMETERS) {
  auto [out, lse] =
      call_below_autograd("strata::hsa_stream_attention", hsa_stream_run, v, q, k, v, STRATA_STREAM_ARGUMENTS);
  const optional<Tensor> values = v;
  attach_backward(
      "strata::hsa_stream_attention", inputs_of({q, k, values, weights, key_bias, positions, level_weights}),
      {out, lse}, /*save_outputs=*/true,
      [branching, near, both_sides, scale, cu_seqlens, max_seqlen, dropout, dropout_state](
          const variable_list& s, const variable_list& gradients) {
        static const auto op = find_op<decltype(hsa_stream_backward_run)>("strata::hsa_stream_attention_backward");
        const SavedInputs in(s, 2);
        return of_given(
            op.call(or_zeros(gradients[0], in.output(0)), optional_tensor(gradients[1]), in.q(), in.k(), in.v,
                    in.output(0), in.output(1), branching, in.weights, in.key_bias, in.positions, in.level_weights,
                    cu_seqlens, dropout_state, near, both_sides, scale, max_seqlen, dropout),
            s);
      });
  return {out, lse};
}

Tensor hsa_stream_step_autograd(const Tensor& q, const Tensor& k, const Tensor& v, const optional<Tensor>& weight,
                                const optional<Tensor>& key_bias, const optional<Tensor>& positions, const Tensor& keys,
                                const Tensor& values, const Tensor& kappas, const Tensor& masses, const Tensor& lengths,
                                const optional<Tensor>& level_weights, int64_t levels, int64_t near,
                                optional<double> scale) {
  refuse_gradient("strata::hsa_stream_step",
                  {q, k, v, or_undefined(weight), or_undefined(key_bias), or_undefined(positions),
                   or_undefined(level_weights), keys, values, kappas, masses});
  const Tensor out =
      call_below_autograd("strata::hsa_stream_step", hsa_stream_step_run, q, q, k, v, weight, key_bias, positions, keys,
                          values, kappas, masses, lengths, level_weights, levels, near, scale);
  for (const Tensor* changed : {&keys, &values, &kappas, &masses, &lengths}) {
    if (!changed->is_inference()) changed->unsafeGetTensorImpl()->bump_version();
  }
  return out;
}

TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def(
      "hsa_stream_attention(Tensor[] q, Tensor[] k, Tensor v, int branching, Tensor? weights=None, "
      "Tensor? key_bias=None, Tensor? positions=None, Tensor? level_weights=None, Tensor? cu_seqlens=None, "
      "Tensor? dropout_state=None, *, int near=1, bool both_sides=False, float? scale=None, int max_seqlen=0, "
      "float dropout=0.0) -> (Tensor out, Tensor lse)");
  m.def(
      "hsa_stream_attention_backward(Tensor dout, Tensor? dlse, Tensor[] q, Tensor[] k, Tensor v, Tensor out, "
      "Tensor lse, int branching, Tensor? weights, Tensor? key_bias, Tensor? positions, Tensor? level_weights, "
      "Tensor? cu_seqlens, Tensor? dropout_state, int near, bool both_sides, float? scale, int max_seqlen=0, "
      "float dropout=0.0) -> Tensor[]");
  m.def(
      "hsa_stream_step(Tensor q, Tensor k, Tensor v, Tensor? weight, Tensor? key_bias, Tensor? positions, "
      "Tensor(a!) keys, Tensor(b!) values, Tensor(c!) kappas, Tensor(d!) masses, Tensor(e!) lengths, "
      "Tensor? level_weights=None, *, int levels=1, int near=1, float? scale=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(strata, CPU, m) {
  m.impl("hsa_stream_attention", hsa_stream_run);
  m.impl("hsa_stream_attention_backward", hsa_stream_backward_run);
  m.impl("hsa_stream_step", hsa_stream_step_run);
}
TORCH_LIBRARY_IMPL(strata, CUDA, m) {
  m.impl("hsa_stream_attention", hsa_stream_run);
  m.impl("hsa_stream_attention_backward", hsa_stream_backward_run);
  m.impl("hsa_stream_step", hsa_stream_step_run);
}
TORCH_LIBRARY_IMPL(strata, Meta, m) {
  m.impl("hsa_stream_attention", hsa_stream_meta);
  m.impl("hsa_stream_attention_backward", hsa_stream_backward_meta);
  m.impl("hsa_stream_step", hsa_stream_step_meta);
}
TORCH_LIBRARY_IMPL(strata, Autograd, m) {
  m.impl("hsa_stream_attention", hsa_stream_autograd);
  m.impl("hsa_stream_attention_backward", hsa_stream_backward_autograd);
  m.impl("hsa_stream_step", hsa_stream_step_autograd);
}

}  // namespace

Tensor hsa_stream_step(const Tensor& q, const Tensor& k, const Tensor& v, HsaStreamState& s,
                       const HsaStreamOptions& o) {
  static const auto op = find_op<decltype(hsa_stream_step_run)>("strata::hsa_stream_step");
  const int64_t levels = o.level_weights.has_value() ? o.level_weights->size(1) : 1;
  return op.call(q, k, v, o.weights, o.key_bias, o.positions, s.keys, s.values, s.kappas, s.masses, s.lengths,
                 o.level_weights, levels, o.near, o.scale);
}

std::tuple<Tensor, Tensor> hsa_stream_attention(TensorList q, TensorList k, const Tensor& v,
                                                const HsaStreamOptions& o) {
  static const auto op = find_op<decltype(hsa_stream_run)>("strata::hsa_stream_attention");
  return op.call(q, k, v, o.branching, o.weights, o.key_bias, o.positions, o.level_weights, o.cu_seqlens,
                 dropout_state_or_drawn(o.dropout, o.dropout_state, v), o.near, o.both_sides, o.scale, o.max_seqlen,
                 o.dropout);
}

}  // namespace strata
