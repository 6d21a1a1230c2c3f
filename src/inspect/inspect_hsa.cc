#include "inspect/inspect_hsa.h"

#include <cmath>

#include "strata/hsa.h"
#include "torch/hkt_op.h"
#include "torch/hsa_op.h"

namespace strata {
namespace {

using torch::Tensor;

// How deep the lowest family of every pair of tokens lies: the pair's attention is decided there. -1 on the diagonal.
std::vector<int> meeting_depths(const Tree& tree) {
  const int64_t T = tree.tokens();
  const TreeView view = tree.view();
  std::vector<int> depth(tree.families(), 0);
  std::vector<std::pair<int64_t, int64_t>> range(tree.families());  // tokens of a family
  for (int64_t f = tree.families() - 1; f >= 0; --f) {              // children stand behind their parents
    const int32_t first = view.children[view.child_begin[f]], last = view.children[view.child_begin[f + 1] - 1];
    range[f] = {first >= 0 ? first : range[~first].first, last >= 0 ? last + 1 : range[~last].second};
  }
  std::vector<int> meeting(static_cast<size_t>(T * T), -1);
  for (int64_t f = 0; f < tree.families(); ++f) {
    for (int32_t c = view.child_begin[f]; c < view.child_begin[f + 1]; ++c) {
      if (view.children[c] < 0) depth[~view.children[c]] = depth[f] + 1;
    }
    for (int64_t i = range[f].first; i < range[f].second; ++i) {  // deeper families overwrite
      for (int64_t j = range[f].first; j < range[f].second; ++j) {
        if (i != j) meeting[i * T + j] = depth[f];
      }
    }
  }
  return meeting;
}

// Share of the attention at every depth of the tree, the token itself first; averaged over rows.
std::vector<double> mass_by_depth(const Tree& tree, const Tensor& q, const Tensor& k, const Tensor& table, double scale,
                                  int64_t head) {
  const int64_t T = tree.tokens(), H = q.size(0);
  const TreeView view = tree.view();
  const int64_t zero = 0;
  const Tensor v = torch::zeros_like(q);
  HsaProblem p;
  p.dtype = DType::kFloat64;
  p.sequences = 1;
  p.trees = &view;
  p.batch_of = p.first_token = &zero;
  p.heads = H;
  p.head_size = p.value_size = static_cast<int>(q.size(2));
  p.scale = scale;
  p.q = dense_view(q.data_ptr(), H, T, q.size(2));
  p.k = dense_view(k.data_ptr(), H, T, q.size(2));
  p.v = dense_view(v.data_ptr(), H, T, q.size(2));
  if (table.defined()) {
    p.positions = table.data_ptr();
    p.kinds = table.size(1);
    p.places = table.size(2);
  }
  std::vector<double> attention(static_cast<size_t>(T * T)), mass(static_cast<size_t>(tree.depth()) + 1, 0.0);
  const Status status = hsa_materialize(p, 0, head, attention.data());
  TORCH_CHECK(status.ok(), status.message());
  const std::vector<int> meeting = meeting_depths(tree);
  for (size_t pair = 0; pair < attention.size(); ++pair)
    mass[meeting[pair] + 1] += attention[pair] / static_cast<double>(T);
  return mass;
}

}  // namespace

Json inspect_hsa_layer(HsaAttentionImpl& layer, const std::vector<Tensor>& inputs,
                       const std::vector<std::shared_ptr<const Tree>>& trees) {
  torch::NoGradGuard no_grad;
  const int64_t heads = layer.options.heads();
  const double scale = 1 / std::sqrt(static_cast<double>(layer.options.model_size() / heads));
  const Tensor table = layer.position_table();
  const Tensor positions = table.defined() ? table.to(torch::kDouble).contiguous() : Tensor();
  const std::vector<int64_t> branchings = {2, 4, 8, 16, 32};
  std::vector<std::vector<double>> mass(heads);
  std::vector<double> own_gap(heads, 0.0);
  std::vector<std::vector<double>> other_gap(branchings.size(), std::vector<double>(heads, 0.0));
  std::vector<double> other_cost(branchings.size(), 0.0);
  double cost = 0, flat_cost = 0, tokens = 0;
  for (size_t n = 0; n < inputs.size(); ++n) {
    const std::vector<Tensor> qkv = layer.project(inputs[n].unsqueeze(0));
    const Tensor q = qkv[0].to(torch::kDouble).contiguous(), k = qkv[1].to(torch::kDouble).contiguous();
    const auto T = static_cast<double>(trees[n]->tokens());
    tokens += T;
    cost += static_cast<double>(trees[n]->cost());
    flat_cost += T * T;
    // With position terms the softmax that is approximated has them too, on the tree; the gaps here compare trees on q
    // and k alone, which is what a tree can be chosen by.
    const Tensor lse =
        std::get<1>(hkt_attention({q}, {k}, torch::zeros_like(q), torch::ones({heads, 1}, torch::kDouble)));
    auto gap_of = [&](const Tree& tree) { return kl_gap(lse, hierarchy_score(q, k, {encode_tree(tree)}))[0]; };
    const Tensor own = gap_of(*trees[n]);
    for (int64_t h = 0; h < heads; ++h) {
      own_gap[h] += own[h].item<double>();
      const std::vector<double> shares = mass_by_depth(*trees[n], q[0], k[0], positions, scale, h);
      if (mass[h].size() < shares.size()) mass[h].resize(shares.size(), 0.0);
      for (size_t depth = 0; depth < shares.size(); ++depth)
        mass[h][depth] += shares[depth] / static_cast<double>(inputs.size());
    }
    for (size_t b = 0; b < branchings.size(); ++b) {
      Tree balanced;
      TORCH_CHECK(balanced_tree(trees[n]->tokens(), branchings[b], Domain::kSet, &balanced).ok());
      other_cost[b] += static_cast<double>(balanced.cost());
      const Tensor gaps = gap_of(balanced);
      for (int64_t h = 0; h < heads; ++h) other_gap[b][h] += gaps[h].item<double>();
    }
  }
  Json json = Json::array();
  for (int64_t h = 0; h < heads; ++h) {
    Json alternatives = Json::array();
    for (size_t b = 0; b < branchings.size(); ++b) {
      alternatives.push_back({{"tree", "balanced " + std::to_string(branchings[b])},
                              {"kl_gap", other_gap[b][h] / tokens},
                              {"cost", other_cost[b] / flat_cost}});
    }
    json.push_back({{"head", h},
                    {"mass_by_depth", mass[h]},
                    {"kl_gap", own_gap[h] / tokens},
                    {"cost", cost / flat_cost},
                    {"alternatives", alternatives}});
  }
  return json;
}

}  // namespace strata
