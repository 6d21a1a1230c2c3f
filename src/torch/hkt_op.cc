// HKT attention as operators: schema, kernels (CPU and CUDA alike) and meta, autograd. A call travels:
//   hkt_attention_autograd    from the dispatcher; saves what the backward needs
//   hkt_attention_kernel      the one check of the tensors; a problem of views of them
//   run_hkt_forward           device and stream
//   strata::hkt_forward       the one check of the problem; the choice of a kernel
#include "torch/hkt_op.h"

#include "strata/hkt.h"
#include "torch/backward_node.h"
#include "torch/compat.h"
#include "torch/hkt_op_check.h"
#include "torch/packed.h"
#include "torch/run_on_device.h"

namespace strata {
namespace {

using at::Tensor;
using at::TensorList;
using strata::has_open_sizes;

// What all signatures below end with, as parameters and as arguments. Tensors come first: torch.vmap takes none by
// keyword.
#define STRATA_HKT_PARAMETERS                                                                                  \
  const optional<Tensor>&lengths, const optional<Tensor>&bias, const optional<Tensor>&key_lengths,             \
      const optional<Tensor>&cu_seqlens, const optional<Tensor>&key_cu_seqlens, const optional<Tensor>&slopes, \
      const optional<Tensor>&dropout_state, bool causal, optional<double> scale, int64_t max_seqlen,           \
      int64_t key_max_seqlen, int64_t window_left, int64_t window_right, double dropout
#define STRATA_HKT_ARGUMENTS                                                                                \
  lengths, bias, key_lengths, cu_seqlens, key_cu_seqlens, slopes, dropout_state, causal, scale, max_seqlen, \
      key_max_seqlen, window_left, window_right, dropout
// With the scale of the scores, which meta kernels do not need: to look at a size that is open would close it.
#define STRATA_HKT_INPUTS(scale_used)                                                                         \
  {                                                                                                           \
    q, k, v, weights, lengths, bias, causal, scale_used, key_lengths, cu_seqlens, key_cu_seqlens, max_seqlen, \
        key_max_seqlen, window_left, window_right, slopes, dropout, dropout_state                             \
  }

// Sizes of a bias with its missing leading axes filled in: (B or 1, H or 1, T or 1, Tk or 1).
std::vector<int64_t> bias_sizes(const Tensor& bias) {
  std::vector<int64_t> sizes(4 - bias.dim(), 1);
  sizes.insert(sizes.end(), bias.sizes().begin(), bias.sizes().end());
  return sizes;
}

// One side of the problem, as the kernels take it. The tensors must outlive the problem.
struct HktSideTensors : PackedSequences {
  int64_t tokens;

  HktSideTensors(const HktInputs& in, const PackedSequences& packed, bool of_keys)
      : PackedSequences(packed), tokens(of_keys ? in.key_rows() : in.rows()) {
    if (given()) tokens = longest;
    const optional<Tensor>& padded = of_keys && !in.shares_lengths() ? in.key_lengths : in.lengths;
    if (padded.has_value()) lengths = padded->to(at::kLong).contiguous();
  }
  const int64_t* lengths_data() const { return lengths.defined() ? lengths.data_ptr<int64_t>() : nullptr; }
};
struct HktTensors {
  HktSideTensors queries, keys;
  Tensor weights, slopes, dropout_state;

  explicit HktTensors(const HktInputs& in)
      : queries(in, PackedSequences(in.cu_seqlens, in.levels(), in.max_seqlen), false),
        keys(in,
             in.key_cu_seqlens.has_value() ? PackedSequences(in.key_cu_seqlens, in.levels(), in.key_max_seqlen)
                                           : queries,
             true),
        weights(in.weights.contiguous()),
        slopes(in.slopes.has_value() ? in.slopes->contiguous() : Tensor()),
        dropout_state(in.dropout > 0 ? in.dropout_state->contiguous() : Tensor()) {}
};

HktProblem make_problem(const HktInputs& in, const HktTensors& tensors) {
  HktProblem p;
  p.dtype = dtype_of(in.v);
  p.batch = in.sequences();
  p.heads = in.heads();
  p.key_heads = in.v.size(1);
  p.tokens = tensors.queries.tokens;
  p.key_tokens = tensors.keys.tokens;
  p.levels = static_cast<int>(in.levels());
  p.head_size = static_cast<int>(in.q[0].size(3));
  p.value_size = static_cast<int>(in.v.size(3));
  for (int l = 0; l < p.levels; ++l) {
    p.q[l] = tensors.queries.packed(const_view(in.q[l]), l);
    p.k[l] = tensors.keys.packed(const_view(in.k[l]), l);
  }
  p.v = tensors.keys.packed(const_view(in.v));
  p.weights = tensors.weights.data_ptr();
  p.lengths = tensors.queries.lengths_data();
  p.key_lengths = tensors.keys.lengths_data();
  if (in.packed()) {
    p.packed_rows = in.rows();
    p.packed_key_rows = in.key_rows();
  }
  if (in.bias.has_value()) p.bias = const_view(in.bias->expand({p.batch, p.heads, p.tokens, p.key_tokens}));
  if (tensors.slopes.defined()) p.slopes = tensors.slopes.data_ptr();
  p.causal = in.causal;
  p.window_left = in.window_left;
  p.window_right = in.window_right;
  p.dropout.probability = in.dropout;
  if (tensors.dropout_state.defined()) p.dropout.state = tensors.dropout_state.data_ptr<int64_t>();
  p.scale = in.scale;
  p.threads = at::get_num_threads();
  return p;
}

bool has_open_sizes(const HktInputs& in) {
  return has_open_sizes(in.v) || has_open_sizes(in.q) || has_open_sizes(in.k) ||
         (in.packed() && has_open_sizes(*in.cu_seqlens));
}

std::tuple<Tensor, Tensor> empty_outputs(const HktInputs& in) {
  if (!has_open_sizes(in)) check_hkt(in);
  const std::vector<c10::SymInt> rows = {in.v.sym_size(0), in.q[0].sym_size(1), in.q[0].sym_size(2)};
  return {empty_with_layout(in.v, std::vector<c10::SymInt>{rows[0], rows[1], rows[2], in.v.sym_size(3)}),
          empty_open(rows, in.weights.options())};
}

std::tuple<Tensor, Tensor> hkt_attention_meta(TensorList q, TensorList k, const Tensor& v, const Tensor& weights,
                                              STRATA_HKT_PARAMETERS) {
  return empty_outputs(STRATA_HKT_INPUTS(scale.value_or(1.0)));
}

std::tuple<Tensor, Tensor> hkt_attention_kernel(TensorList q, TensorList k, const Tensor& v, const Tensor& weights,
                                                STRATA_HKT_PARAMETERS) {
  const HktInputs in STRATA_HKT_INPUTS(scale_or_default(scale, q));
  auto [out, lse] = empty_outputs(in);
  const HktTensors tensors(in);
  run_hkt_forward(v, make_problem(in, tensors), {tensors.queries.packed(view(out)), lse.data_ptr()});
  return {out, lse};
}

// Gradients in the order q.., k.., v, weights, bias; the last is an empty tensor when it is not wanted. Coarse levels
// of packed sequences have rows that belong to none, whose gradients are zero.
std::vector<Tensor> empty_hkt_gradients(const HktInputs& in, bool bias_gradient) {
  if (!has_open_sizes(in)) check_hkt(in);
  std::vector<Tensor> gradients;
  for (const TensorList& list : {in.q, in.k}) {
    for (size_t l = 0; l < list.size(); ++l) {
      gradients.push_back(empty_with_layout(list[l], list[l].sym_sizes()));
      if (in.packed() && l > 0) gradients.back().zero_();
    }
  }
  gradients.push_back(empty_with_layout(in.v, in.v.sym_sizes()));
  gradients.push_back(empty_open(in.weights.sym_sizes().vec(), in.weights.options()));
  TORCH_CHECK(!bias_gradient || in.bias.has_value(), "bias_gradient: expected false, because there is no bias");
  gradients.push_back(
      empty_open(bias_gradient ? in.bias->sym_sizes().vec() : std::vector<c10::SymInt>{0}, in.v.options()));
  return gradients;
}

std::vector<Tensor> hkt_attention_backward_meta(const Tensor&, const optional<Tensor>&, TensorList q, TensorList k,
                                                const Tensor& v, const Tensor& weights, const Tensor&, const Tensor&,
                                                bool bias_gradient, STRATA_HKT_PARAMETERS) {
  return empty_hkt_gradients(STRATA_HKT_INPUTS(scale.value_or(1.0)), bias_gradient);
}

std::vector<Tensor> hkt_attention_backward_kernel(const Tensor& dout, const optional<Tensor>& dlse, TensorList q,
                                                  TensorList k, const Tensor& v, const Tensor& weights,
                                                  const Tensor& out, const Tensor& lse, bool bias_gradient,
                                                  STRATA_HKT_PARAMETERS) {
  const HktInputs in STRATA_HKT_INPUTS(scale_or_default(scale, q));
  std::vector<Tensor> gradients = empty_hkt_gradients(in, bias_gradient);
  const HktTensors tensors(in);
  const HktSideTensors &queries = tensors.queries, &keys = tensors.keys;
  const Tensor dense_lse = lse.contiguous();
  TORCH_CHECK(dout.sizes() == out.sizes(), "dout: expected shape ", out.sizes(), ", got ", dout.sizes());
  const Tensor typed_dout = dout.to(v.scalar_type());
  const Tensor dense_dlse = dlse.has_value() ? dlse->to(weights.scalar_type()).contiguous() : Tensor();

  HktGradients g;
  g.dout = queries.packed(const_view(typed_dout));
  g.dlse = dense_dlse.defined() ? dense_dlse.data_ptr() : nullptr;
  const int L = static_cast<int>(in.levels());
  for (int l = 0; l < L; ++l) {
    g.dq[l] = queries.packed(view(gradients[l]), l);
    g.dk[l] = keys.packed(view(gradients[L + l]), l);
  }
  g.dv = keys.packed(view(gradients[2 * L]));
  g.dweights = gradients[2 * L + 1].data_ptr();
  Tensor dbias;
  if (bias_gradient) {
    const std::vector<int64_t> sizes = bias_sizes(*bias);
    dbias = at::empty({sizes[0], sizes[1], in.rows(), in.key_rows()}, v.options());
    g.dbias = view(dbias);
    if (sizes[0] == 1) g.dbias.stride[0] = 0;
    if (sizes[1] == 1) g.dbias.stride[1] = 0;
  }
  run_hkt_backward(v, make_problem(in, tensors), {queries.packed(view(out)), dense_lse.data_ptr()}, g);
  // The kernel has summed over batch and heads; a bias that broadcasts over tokens is summed here.
  if (bias_gradient) gradients.back() = dbias.sum_to_size(bias_sizes(*bias)).reshape(bias->sizes());
  return gradients;
}

// ------------------------------------------------------------------------------------------------- autograd

// q.., k.., v, weights, bias.
variable_list hkt_inputs(TensorList q, TensorList k, const Tensor& v, const Tensor& weights,
                         const optional<Tensor>& bias) {
  variable_list inputs(q.begin(), q.end());
  inputs.insert(inputs.end(), k.begin(), k.end());
  inputs.insert(inputs.end(), {v, weights, or_undefined(bias)});
  return inputs;
}

std::vector<Tensor> hkt_attention_backward_autograd(const Tensor& dout, const optional<Tensor>& dlse, TensorList q,
                                                    TensorList k, const Tensor& v, const Tensor& weights,
                                                    const Tensor& out, const Tensor& lse, bool bias_gradient,
                                                    STRATA_HKT_PARAMETERS) {
  std::vector<Tensor> gradients =
      call_below_autograd("strata::hkt_attention_backward", hkt_attention_backward_kernel, v, dout, dlse, q, k, v,
                          weights, out, lse, bias_gradient, STRATA_HKT_ARGUMENTS);
  variable_list inputs = hkt_inputs(q, k, v, weights, bias);
  inputs.insert(inputs.end(), {dout, or_undefined(dlse), out, lse});
  refuse_second_derivative("strata::hkt_attention", inputs, gradients);
  return gradients;
}

std::tuple<Tensor, Tensor> hkt_attention_autograd(TensorList q, TensorList k, const Tensor& v, const Tensor& weights,
                                                  STRATA_HKT_PARAMETERS) {
  auto [out, lse] =
      call_below_autograd("strata::hkt_attention", hkt_attention_kernel, v, q, k, v, weights, STRATA_HKT_ARGUMENTS);
  const bool bias_gradient = bias.has_value() && bias->requires_grad();
  attach_backward(
      "strata::hkt_attention", hkt_inputs(q, k, v, weights, bias), {out, lse}, /*save_outputs=*/true,
      [lengths, causal, scale, key_lengths, cu_seqlens, key_cu_seqlens, max_seqlen, key_max_seqlen, window_left,
       window_right, slopes, dropout, dropout_state,
       bias_gradient](const variable_list& s, const variable_list& gradients) {
        static const auto op = find_op<decltype(hkt_attention_backward_kernel)>("strata::hkt_attention_backward");
        const size_t L = (s.size() - 5) / 2;  // q.., k.., v, weights, bias, out, lse
        const TensorList all(s);
        const Tensor &v = s[2 * L], &weights = s[2 * L + 1], &out = s[2 * L + 3], &lse = s[2 * L + 4];
        const optional<Tensor> bias = optional_tensor(s[2 * L + 2]);
        variable_list result = op.call(or_zeros(gradients[0], out), optional_tensor(gradients[1]), all.slice(0, L),
                                       all.slice(L, L), v, weights, out, lse, bias_gradient, STRATA_HKT_ARGUMENTS);
        if (!bias_gradient) result.back() = Tensor();
        return result;
      });
  return {out, lse};
}

// Level l of a sequence of n tokens has ceil(n / 2^l) rows.
Tensor packed_begins_composite(const Tensor& cu_seqlens, int64_t levels) {
  const Tensor cu = cu_seqlens.to(at::kLong), lengths = cu.slice(0, 1) - cu.slice(0, 0, -1);
  if (levels == 1) return cu.slice(0, 0, -1).unsqueeze(0);
  const Tensor level = at::arange(levels, cu.options()).unsqueeze(1), size = at::bitwise_left_shift(1, level);
  const Tensor rows = (lengths + size - 1).bitwise_right_shift(level);  // (levels, B)
  return rows.cumsum(1) - rows;
}

#define STRATA_HKT_TENSORS                                                                       \
  "Tensor? lengths=None, Tensor? bias=None, Tensor? key_lengths=None, Tensor? cu_seqlens=None, " \
  "Tensor? key_cu_seqlens=None, Tensor? slopes=None, Tensor? dropout_state=None, "
#define STRATA_HKT_NUMBERS                                                                             \
  "bool causal=False, float? scale=None, int max_seqlen=0, int key_max_seqlen=0, int window_left=-1, " \
  "int window_right=-1, float dropout=0.0"
TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def("hkt_attention(Tensor[] q, Tensor[] k, Tensor v, Tensor weights, " STRATA_HKT_TENSORS "*, " STRATA_HKT_NUMBERS
        ") -> (Tensor out, Tensor lse)");
  m.def(
      "hkt_attention_backward(Tensor dout, Tensor? dlse, Tensor[] q, Tensor[] k, Tensor v, Tensor weights, Tensor out, "
      "Tensor lse, bool bias_gradient, " STRATA_HKT_TENSORS STRATA_HKT_NUMBERS ") -> Tensor[]");
  m.def("packed_begins(Tensor cu_seqlens, int levels) -> Tensor", packed_begins_composite);
}
TORCH_LIBRARY_IMPL(strata, CPU, m) {
  m.impl("hkt_attention", hkt_attention_kernel);
  m.impl("hkt_attention_backward", hkt_attention_backward_kernel);
}
TORCH_LIBRARY_IMPL(strata, CUDA, m) {
  m.impl("hkt_attention", hkt_attention_kernel);
  m.impl("hkt_attention_backward", hkt_attention_backward_kernel);
}
TORCH_LIBRARY_IMPL(strata, Meta, m) {
  m.impl("hkt_attention", hkt_attention_meta);
  m.impl("hkt_attention_backward", hkt_attention_backward_meta);
}
TORCH_LIBRARY_IMPL(strata, Autograd, m) {
  m.impl("hkt_attention", hkt_attention_autograd);
  m.impl("hkt_attention_backward", hkt_attention_backward_autograd);
}

}  // namespace

std::tuple<Tensor, Tensor> hkt_attention(TensorList q, TensorList k, const Tensor& v, const Tensor& weights,
                                         const HktOptions& o) {
  static const auto op = find_op<decltype(hkt_attention_kernel)>("strata::hkt_attention");
  const optional<Tensor> state = dropout_state_or_drawn(o.dropout, o.dropout_state, v);
  return op.call(q, k, v, weights, o.lengths, o.bias, o.key_lengths, o.cu_seqlens, o.key_cu_seqlens, o.slopes, state,
                 o.causal, o.scale, o.max_seqlen, o.key_max_seqlen, o.window_left, o.window_right, o.dropout);
}

Tensor packed_begins(const Tensor& cu_seqlens, int64_t levels) { return packed_begins_composite(cu_seqlens, levels); }

}  // namespace strata
