#include "model/hkt_project.h"

#include "torch/backward_node.h"
#include "torch/compat.h"

namespace strata {
namespace {

using torch::Tensor;

// The type of products: autocast's where that is on.
at::ScalarType product_type(const Tensor& x) {
  const optional<at::ScalarType> cast = autocast_type(x.device().type());
  return cast.has_value() && x.scalar_type() != at::kDouble ? *cast : x.scalar_type();
}

// What the backward needs beside the inputs.
struct Kept {
  Tensor states;   // (rows of all levels, C)
  Tensor weights;  // (H d + 2 Hk d, C): queries, keys, values
  int64_t q_size = 0, k_size = 0, levels = 0;
};

// A gradient (B, H, rows, d) as a matrix (B rows, H d).
Tensor as_matrix(const Tensor& gradient, int64_t rows, int64_t size, const Tensor& like) {
  if (!gradient.defined()) return torch::zeros({rows, size}, like.options());
  return gradient.to(like.scalar_type()).transpose(1, 2).reshape({rows, size});
}

// gradients: of q.., k.., v. Returns those of x, lengths (none), the filters, and the three weights.
variable_list backward(const PyramidInput& in, const Kept& kept, const variable_list& gradients) {
  const int64_t L = kept.levels, fine = in.rows(0), both = kept.q_size + kept.k_size;
  auto matrix = [&](int64_t at, int64_t level, int64_t size) {
    return as_matrix(gradients[at], in.rows(level), size, kept.states);
  };
  Tensor dstates = torch::empty_like(kept.states);
  const Tensor dfine =
      torch::cat({matrix(0, 0, kept.q_size), matrix(L, 0, kept.k_size), matrix(2 * L, 0, kept.k_size)}, 1);
  Tensor dfine_states = dstates.narrow(0, 0, fine);
  at::mm_out(dfine_states, dfine, kept.weights);
  const Tensor dweights = dfine.t()
                              .mm(kept.states.narrow(0, 0, fine))
                              .to(torch::promoteTypes(in.x.scalar_type(), kept.states.scalar_type()));
  if (L > 1) {
    const int64_t rows = kept.states.size(0) - fine;
    const Tensor dcoarse = torch::empty({rows, both}, kept.states.options());
    for (int64_t l = 1; l < L; ++l) {
      Tensor part = dcoarse.narrow(0, in.first_row(l) - fine, in.rows(l));
      at::cat_out(part, {matrix(l, l, kept.q_size), matrix(L + l, l, kept.k_size)}, 1);
    }
    Tensor dcoarse_states = dstates.narrow(0, fine, rows);
    at::mm_out(dcoarse_states, dcoarse, kept.weights.narrow(0, 0, both));
    dweights.narrow(0, 0, both).add_(dcoarse.t().mm(kept.states.narrow(0, fine, rows)));
  }
  auto [dx, dfilters] = pyramid_states_backward(in, kept.states, dstates);
  variable_list all = {dx, Tensor()};
  all.insert(all.end(), dfilters.begin(), dfilters.end());
  all.insert(all.end(), {dweights.narrow(0, 0, kept.q_size), dweights.narrow(0, kept.q_size, kept.k_size),
                         dweights.narrow(0, both, kept.k_size)});
  return all;
}

}  // namespace

bool projects_at_once(const PyramidInput& in, const HktProjections& weights) {
  const at::ScalarType type = product_type(in.x), x = in.x.scalar_type();
  const bool known = in.x.is_cpu() || in.x.is_cuda();
  return known && in.x.numel() > 0 &&
         (type == x || (x == at::kFloat && (type == at::kBFloat16 || type == at::kHalf))) &&
         weights.query.scalar_type() == x && makes_states_at_once(in);
}

Projected project_at_once(const PyramidInput& in, const HktProjections& weights, int64_t head_size) {
  const int64_t B = in.x.size(0), L = in.levels(), fine = in.rows(0);
  Kept kept;
  kept.levels = L;
  kept.q_size = weights.query.size(0);
  kept.k_size = weights.key.size(0);
  const int64_t both = kept.q_size + kept.k_size;
  Projected out;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    const at::ScalarType type = product_type(in.x);
    kept.states = pyramid_states(in, type);
    kept.weights = torch::cat({weights.query, weights.key, weights.value}).to(type);
    auto heads = [&](const Tensor& rows, int64_t first, int64_t size) {
      return rows.narrow(1, first, size).view({B, rows.size(0) / B, size / head_size, head_size}).transpose(1, 2);
    };
    const Tensor tokens = kept.states.narrow(0, 0, fine).mm(kept.weights.t());
    out.q.push_back(heads(tokens, 0, kept.q_size));
    out.k.push_back(heads(tokens, kept.q_size, kept.k_size));
    out.v = heads(tokens, both, kept.k_size);
    if (L > 1) {
      const Tensor coarse =
          kept.states.narrow(0, fine, kept.states.size(0) - fine).mm(kept.weights.narrow(0, 0, both).t());
      for (int64_t l = 1; l < L; ++l) {
        const Tensor rows = coarse.narrow(0, in.first_row(l) - fine, in.rows(l));
        out.q.push_back(heads(rows, 0, kept.q_size));
        out.k.push_back(heads(rows, kept.q_size, kept.k_size));
      }
    }
  }
  variable_list inputs = {in.x, in.lengths}, outputs = out.q;
  inputs.insert(inputs.end(), in.filters.begin(), in.filters.end());
  inputs.insert(inputs.end(), {weights.query, weights.key, weights.value});
  outputs.insert(outputs.end(), out.k.begin(), out.k.end());
  outputs.push_back(out.v);
  attach_backward(
      "strata::project_at_once", inputs, outputs, /*save_outputs=*/false,
      [kept, filters = in.filters.size()](const variable_list& saved, const variable_list& gradients) {
        const auto first = saved.begin() + 2;
        return backward({saved[0], saved[1], {first, first + static_cast<int64_t>(filters)}}, kept, gradients);
      });
  return out;
}

}  // namespace strata
