// The rows that a new token adds to a pyramid and to a cache of HKT, as operators that write into rings.
#include "strata/hkt.h"
#include "strata/pyramid.h"
#include "torch/backward_node.h"
#include "torch/compat.h"
#include "torch/hkt_op.h"
#include "torch/op_common.h"
#include "torch/run_on_device.h"

namespace strata {
namespace {

using at::Tensor;
using at::TensorList;

void count_change(const Tensor& changed) {
  if (!changed.is_inference()) changed.unsafeGetTensorImpl()->bump_version();
}

// A ring of the rows of `row`, (B, H, 1, d).
void check_ring(const char* name, const Tensor& ring, const Tensor& row, const Tensor& like) {
  TORCH_CHECK(row.dim() == 4 && ring.dim() == 4 && row.size(2) == 1 && ring.size(0) == row.size(0) &&
                  ring.size(1) == row.size(1) && ring.size(3) == row.size(3) && ring.size(2) >= 1,
              name, ": expected a new row (batch, heads, 1, channels) and a ring (batch, heads, slots, channels), got ",
              row.sizes(), " and ", ring.sizes());
  for (const Tensor* t : {&row, &ring}) check_tensor(name, *t, t->sizes(), like.scalar_type(), like);
}

Tensor no_rows(const Tensor& like) { return at::empty({0}, like.options()); }
Tensor current_rows(const Tensor& row, size_t levels) {
  return empty_open({row.sym_size(0), row.sym_size(1), static_cast<int64_t>(levels), row.sym_size(3)}, row.options());
}

std::tuple<Tensor, Tensor> hkt_append_meta(TensorList q, TensorList k, const optional<Tensor>&, TensorList, TensorList,
                                           const optional<Tensor>&, const Tensor&, bool current) {
  TORCH_CHECK(!q.empty() && k.size() == q.size(), "q, k: expected one tensor per level, got ", q.size(), " and ",
              k.size());
  if (!current) return {no_rows(q[0]), no_rows(k[0])};
  return {current_rows(q[0], q.size()), current_rows(k[0], k.size())};
}

std::tuple<Tensor, Tensor> hkt_append_run(TensorList q, TensorList k, const optional<Tensor>& v, TensorList queries,
                                          TensorList keys, const optional<Tensor>& values, const Tensor& lengths,
                                          bool current) {
  const size_t levels = q.size();
  TORCH_CHECK(levels >= 1 && levels <= static_cast<size_t>(kMaxLevels) && k.size() == levels &&
                  queries.size() == levels && keys.size() == levels && v.has_value() == values.has_value(),
              "q, k, queries, keys: expected one tensor for each of 1 to ", kMaxLevels,
              " levels, and values if there is v, got ", q.size(), ", ", k.size(), ", ", queries.size(), " and ",
              keys.size());
  HktAppend a;
  a.dtype = dtype_of(q[0]);
  a.levels = static_cast<int>(levels);
  for (size_t l = 0; l < levels; ++l) {
    check_ring("queries", queries[l], q[l], q[0]);
    check_ring("keys", keys[l], k[l], q[0]);
    a.q[l] = const_view(q[l]), a.queries[l] = view(queries[l]), a.query_slots[l] = queries[l].size(2);
    a.k[l] = const_view(k[l]), a.keys[l] = view(keys[l]), a.key_slots[l] = keys[l].size(2);
  }
  if (v.has_value()) {
    check_ring("values", *values, *v, q[0]);
    a.v = const_view(*v), a.values = view(*values), a.value_slots = values->size(2);
    a.value_size = static_cast<int>(v->size(3));
  }
  a.batch = q[0].size(0);
  a.heads = q[0].size(1);
  a.key_heads = k[0].size(1);
  a.head_size = static_cast<int>(q[0].size(3));
  check_tensor("lengths", lengths, {a.batch}, at::kLong, q[0]);
  const Tensor dense_lengths = lengths.contiguous();
  a.lengths = dense_lengths.data_ptr<int64_t>();
  std::tuple<Tensor, Tensor> rows = hkt_append_meta(q, k, v, queries, keys, values, lengths, current);
  if (current) a.current_q = std::get<0>(rows).data_ptr(), a.current_k = std::get<1>(rows).data_ptr();
  run_hkt_append(q[0], a);
  return rows;
}

std::tuple<Tensor, Tensor> hkt_append_autograd(TensorList q, TensorList k, const optional<Tensor>& v,
                                               TensorList queries, TensorList keys, const optional<Tensor>& values,
                                               const Tensor& lengths, bool current) {
  variable_list inputs = {or_undefined(v), or_undefined(values)};
  for (TensorList list : {q, k, queries, keys}) inputs.insert(inputs.end(), list.begin(), list.end());
  refuse_gradient("strata::hkt_append", inputs);
  const auto rows = call_below_autograd("strata::hkt_append", hkt_append_run, lengths, q, k, v, queries, keys, values,
                                        lengths, current);
  for (TensorList list : {queries, keys})
    for (const Tensor& changed : list) count_change(changed);
  if (values.has_value()) count_change(*values);
  return rows;
}

Tensor pyramid_step_meta(const Tensor& x, TensorList filters, const optional<Tensor>& inputs, TensorList,
                         const Tensor&) {
  const auto levels = static_cast<int64_t>(filters.size()) + (inputs.has_value() ? 0 : 1);
  return empty_open({x.sym_size(0), levels, x.sym_size(1)}, x.options());
}

Tensor pyramid_step_run(const Tensor& x, TensorList filters, const optional<Tensor>& inputs, TensorList states,
                        const Tensor& lengths) {
  const int64_t skipped = inputs.has_value() ? 0 : 1, levels = static_cast<int64_t>(filters.size()) + skipped;
  TORCH_CHECK(x.dim() == 2, "x: expected shape (batch, channels), got ", x.sizes());
  TORCH_CHECK(levels >= 1 && levels <= kMaxLevels && static_cast<int64_t>(states.size()) == levels - 1,
              "filters, states: expected filters of 1 to ", kMaxLevels,
              " levels and the states of all but the last, got ", filters.size(), " and ", states.size());
  PyramidStep p;
  p.dtype = dtype_of(x);
  p.batch = x.size(0);
  p.channels = x.size(1);
  p.levels = static_cast<int>(levels);
  std::vector<Tensor> dense;  // what must live until the call
  for (size_t i = 0; i < filters.size(); ++i) {
    TORCH_CHECK(filters[i].dim() == 2, "filters: expected depthwise filters (taps, channels), got ",
                filters[i].sizes());
    check_tensor("filters", filters[i], {filters[0].size(0), p.channels}, x.scalar_type(), x);
    dense.push_back(filters[i].contiguous());
    p.filters[i + skipped] = dense.back().data_ptr();
  }
  p.taps = filters.empty() ? 1 : static_cast<int>(filters[0].size(0));
  auto ring = [&](const char* name, const Tensor& t, int64_t* slots) {
    TORCH_CHECK(t.dim() == 3 && t.is_contiguous(), name, ": expected a contiguous ring (batch, slots, channels), got ",
                t.sizes());
    check_tensor(name, t, {p.batch, t.size(1), p.channels}, x.scalar_type(), x);
    *slots = t.size(1);
    return t.data_ptr();
  };
  if (inputs.has_value()) p.inputs = ring("inputs", *inputs, &p.input_slots);
  for (size_t l = 0; l < states.size(); ++l) p.states[l] = ring("states", states[l], &p.slots[l]);
  check_tensor("lengths", lengths, {p.batch}, at::kLong, x);
  dense.push_back(x.contiguous());
  p.x = dense.back().data_ptr();
  dense.push_back(lengths.contiguous());
  p.lengths = dense.back().data_ptr<int64_t>();
  const Tensor out = at::empty({p.batch, levels, p.channels}, x.options());
  p.out = out.data_ptr();
  run_pyramid_step(x, p);
  return out;
}

Tensor pyramid_step_autograd(const Tensor& x, TensorList filters, const optional<Tensor>& inputs, TensorList states,
                             const Tensor& lengths) {
  variable_list all = {x, or_undefined(inputs)};
  for (TensorList list : {filters, states}) all.insert(all.end(), list.begin(), list.end());
  refuse_gradient("strata::pyramid_step", all);
  const Tensor out =
      call_below_autograd("strata::pyramid_step", pyramid_step_run, x, x, filters, inputs, states, lengths);
  for (const Tensor& changed : states) count_change(changed);
  if (inputs.has_value()) count_change(*inputs);
  return out;
}

TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def(
      "hkt_append(Tensor[] q, Tensor[] k, Tensor? v, Tensor(a!)[] queries, Tensor(b!)[] keys, Tensor(c!)? values, "
      "Tensor lengths, *, bool current=False) -> (Tensor, Tensor)");
  m.def("pyramid_step(Tensor x, Tensor[] filters, Tensor(a!)? inputs, Tensor(b!)[] states, Tensor lengths) -> Tensor");
}
TORCH_LIBRARY_IMPL(strata, CPU, m) {
  m.impl("hkt_append", hkt_append_run);
  m.impl("pyramid_step", pyramid_step_run);
}
TORCH_LIBRARY_IMPL(strata, CUDA, m) {
  m.impl("hkt_append", hkt_append_run);
  m.impl("pyramid_step", pyramid_step_run);
}
TORCH_LIBRARY_IMPL(strata, Meta, m) {
  m.impl("hkt_append", hkt_append_meta);
  m.impl("pyramid_step", pyramid_step_meta);
}
TORCH_LIBRARY_IMPL(strata, Autograd, m) {
  m.impl("hkt_append", hkt_append_autograd);
  m.impl("pyramid_step", pyramid_step_autograd);
}

}  // namespace

std::tuple<Tensor, Tensor> hkt_append(TensorList q, TensorList k, const optional<Tensor>& v, TensorList queries,
                                      TensorList keys, const optional<Tensor>& values, const Tensor& lengths,
                                      bool current) {
  static const auto op = find_op<decltype(hkt_append_run)>("strata::hkt_append");
  return op.call(q, k, v, queries, keys, values, lengths, current);
}

Tensor pyramid_step(const Tensor& x, TensorList filters, const optional<Tensor>& inputs, TensorList states,
                    const Tensor& lengths) {
  static const auto op = find_op<decltype(pyramid_step_run)>("strata::pyramid_step");
  return op.call(x, filters, inputs, states, lengths);
}

}  // namespace strata
