#include "torch/pyramid_states.h"

#include "strata/pyramid.h"
#include "torch/hkt_op.h"
#include "torch/op_common.h"
#include "torch/run_on_device.h"

namespace strata {
namespace {

using at::Tensor;

// One level of the matrix, (B, rows, C).
Tensor level_of(const Tensor& states, const PyramidInput& in, int64_t level) {
  return states.narrow(0, in.first_row(level), in.rows(level)).view({in.x.size(0), -1, in.x.size(2)});
}

Tensor padding_of(const PyramidInput& in) {
  return (at::arange(in.x.size(1), in.lengths.options()) >= in.lengths.unsqueeze(1)).unsqueeze(-1);
}

// The input as the kernels take it; it must outlive the problem.
struct DenseInput {
  explicit DenseInput(const PyramidInput& in)
      : x(in.x.contiguous()), lengths(in.lengths.defined() ? in.lengths.to(at::kLong).contiguous() : Tensor()) {
    for (const Tensor& filter : in.filters) filters.push_back(filter.contiguous());
  }
  Pyramid problem(const Tensor& states) const {
    Pyramid p;
    p.dtype = dtype_of(x);
    p.state_dtype = dtype_of(states);
    p.batch = x.size(0);
    p.tokens = x.size(1);
    p.channels = x.size(2);
    p.levels = static_cast<int>(filters.size()) + 1;
    p.x = x.data_ptr();
    if (lengths.defined()) p.lengths = lengths.data_ptr<int64_t>();
    for (size_t l = 0; l < filters.size(); ++l) p.weight[l + 1] = filters[l].data_ptr();
    return p;
  }
  Tensor x, lengths;
  std::vector<Tensor> filters;
};

PyramidStates pointers(const Tensor& states, const PyramidInput& in) {
  PyramidStates all;
  for (int64_t l = 0; l < in.levels(); ++l) all.state[l] = level_of(states, in, l).data_ptr();
  return all;
}

Tensor states_on_cpu(const PyramidInput& in, at::ScalarType type) {
  Tensor state = in.lengths.defined() ? in.x.masked_fill(padding_of(in), 0) : in.x;
  if (in.levels() == 1) return state.to(type).reshape({-1, state.size(2)});
  const Tensor states = at::empty({in.first_row(in.levels()), in.x.size(2)}, in.x.options().dtype(type));
  for (int64_t l = 0; l < in.levels(); ++l) {
    if (l > 0) state = causal_filter(state, in.filters[l - 1], 2);
    level_of(states, in, l).copy_(state);
  }
  return states;
}

std::tuple<Tensor, std::vector<Tensor>> backward_on_cpu(const PyramidInput& in, const Tensor& states,
                                                        const Tensor& dstates) {
  using Backward = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, int64_t);
  static const auto filter_backward = find_op<Backward>("strata::depthwise_filter_backward");
  const at::ScalarType type = in.x.scalar_type();
  std::vector<Tensor> dfilters(in.filters.size());
  Tensor dstate = level_of(dstates, in, in.levels() - 1).to(type);
  for (int64_t l = in.levels() - 1; l > 0; --l) {
    const Tensor below = level_of(states, in, l - 1).to(type);
    auto [dbelow, dfilter] = filter_backward.call(dstate, below, in.filters[l - 1], 2);
    dfilters[l - 1] = dfilter;
    dstate = dbelow + level_of(dstates, in, l - 1);
  }
  return {in.lengths.defined() ? dstate.masked_fill(padding_of(in), 0) : dstate, dfilters};
}

}  // namespace

int64_t PyramidInput::rows(int64_t level) const {
  return x.size(0) * hkt_level_tokens(x.size(1), static_cast<int>(level));
}
int64_t PyramidInput::first_row(int64_t level) const {
  int64_t sum = 0;
  for (int64_t l = 0; l < level; ++l) sum += rows(l);
  return sum;
}

bool makes_states_at_once(const PyramidInput& in) {
  if (in.levels() > kMaxPyramidLevels) return false;
  for (const Tensor& filter : in.filters) {
    if (filter.dim() != 2 || filter.size(0) != kPyramidTaps || filter.scalar_type() != in.x.scalar_type()) return false;
  }
  return true;
}

Tensor pyramid_states(const PyramidInput& in, at::ScalarType type) {
  if (!in.x.is_cuda()) return states_on_cpu(in, type);
  const Tensor states = at::empty({in.first_row(in.levels()), in.x.size(2)}, in.x.options().dtype(type));
  const DenseInput dense(in);
  run_pyramid_forward(in.x, dense.problem(states), pointers(states, in));
  return states;
}

std::tuple<Tensor, std::vector<Tensor>> pyramid_states_backward(const PyramidInput& in, const Tensor& states,
                                                                const Tensor& dstates) {
  if (!in.x.is_cuda()) return backward_on_cpu(in, states, dstates);
  const DenseInput dense(in);
  const Tensor dense_dstates = dstates.contiguous(), dx = at::empty_like(dense.x);
  std::vector<Tensor> dfilters;
  PyramidGradients g;
  g.dstates = pointers(dense_dstates, in);
  g.dx = dx.data_ptr();
  for (const Tensor& filter : dense.filters) {
    dfilters.push_back(at::empty_like(filter));
    g.dweights.state[dfilters.size()] = dfilters.back().data_ptr();
  }
  run_pyramid_backward(in.x, dense.problem(states), pointers(states, in), g);
  return {dx, dfilters};
}

}  // namespace strata
