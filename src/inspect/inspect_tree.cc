#include "inspect/inspect_tree.h"

#include <cmath>

#include "strata/hsa.h"
#include "torch/hkt_op.h"
#include "torch/hsa_op.h"

namespace strata {
namespace {

using torch::Tensor;

// The depth of the lowest common family of every pair of tokens, which decides their attention. -1 on the diagonal.
std::vector<int> meeting_depths(const Tree& tree) {
  const int64_t T = tree.tokens();
  const TreeView view = tree.view();
  std::vector<int> depth(tree.families(), 0);
  std::vector<std::pair<int64_t, int64_t>> range(tree.families());  // tokens of a family
  for (int64_t f = tree.families() - 1; f >= 0; --f) {              // children come after their parents
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

// Sums of one kind of tree over the sequences, per head.
struct TreeSums {
  explicit TreeSums(int64_t heads) : gap(heads, 0.0), score(heads, 0.0) {}
  std::vector<double> gap, score;
  double cost = 0;
};

// Share of the attention at every depth of the tree, the token itself first; averaged over rows.
std::vector<double> mass_by_depth(const Tree& tree, const std::vector<int>& meeting, const Matrix& attention) {
  std::vector<double> mass(static_cast<size_t>(tree.depth()) + 1, 0.0);
  for (Eigen::Index pair = 0; pair < attention.size(); ++pair)
    mass[meeting[pair] + 1] += attention.data()[pair] / static_cast<double>(tree.tokens());
  return mass;
}

}  // namespace

std::vector<Matrix> tree_attention_matrices(torch::nn::Module& layer, const Tensor& input, const Tree& tree) {
  const LayerScores scores = layer_scores(layer, input);
  const int64_t T = tree.tokens(), H = scores.heads(), d = scores.q[0].size(3), key_heads = scores.k[0].size(1);
  const TreeView view = tree.view();
  const int64_t zero = 0;
  const Tensor v = torch::zeros_like(scores.k[0]);
  HsaProblem p;
  p.dtype = DType::kFloat64;
  p.sequences = 1;
  p.trees = &view;
  p.batch_of = p.first_token = &zero;
  p.heads = H;
  p.key_heads = key_heads;
  p.levels = static_cast<int>(scores.q.size());
  p.head_size = p.value_size = static_cast<int>(d);
  p.scale = 1 / std::sqrt(static_cast<double>(d));
  for (int l = 0; l < p.levels; ++l) {
    p.first_row[l] = &zero;
    p.q[l] = dense_view(scores.q[l].data_ptr(), H, scores.q[l].size(2), d);
    p.k[l] = dense_view(scores.k[l].data_ptr(), key_heads, scores.k[l].size(2), d);
  }
  p.v = dense_view(v.data_ptr(), key_heads, T, d);
  p.level_weights = scores.level_weights.data_ptr();
  if (scores.positions.defined()) {
    p.positions = scores.positions.data_ptr();
    p.kinds = scores.positions.size(1);
    p.places = scores.positions.size(2);
  }
  return head_matrices(H, T, [&](int64_t h, double* to) { return hsa_materialize(p, 0, h, to); });
}

Json inspect_tree_layer(torch::nn::Module& layer, const std::vector<Tensor>& inputs,
                        const std::vector<std::shared_ptr<const Tree>>& trees) {
  torch::NoGradGuard no_grad;
  const int64_t heads = layer_scores(layer, inputs[0]).heads();
  const std::vector<int64_t> branchings = {2, 4, 8, 16, 32};
  std::vector<std::vector<double>> mass(heads);
  TreeSums own(heads);
  std::vector<TreeSums> others(branchings.size(), TreeSums(heads));
  double flat_cost = 0, tokens = 0;
  for (size_t n = 0; n < inputs.size(); ++n) {
    const LayerScores scores = layer_scores(layer, inputs[n]);
    const auto T = static_cast<double>(trees[n]->tokens());
    tokens += T;
    own.cost += static_cast<double>(trees[n]->cost());
    flat_cost += T * T;
    // With position terms, the approximated attention has them, too. The gaps here compare trees on q and k alone, by
    // which a tree can be chosen.
    const Tensor v = torch::zeros_like(scores.k[0]);
    const Tensor lse = std::get<1>(hkt_attention(scores.q, scores.k, v, scores.level_weights));
    HsaOptions options;
    options.level_weights = scores.level_weights;
    auto score_of = [&](const Tree& tree) { return hierarchy_score(scores.q, scores.k, {encode_tree(tree)}, options); };
    const Tensor own_score = score_of(*trees[n]), own_gap = kl_gap(lse, own_score)[0];
    const std::vector<Matrix> attention = tree_attention_matrices(layer, inputs[n], *trees[n]);
    const std::vector<int> meeting = meeting_depths(*trees[n]);
    for (int64_t h = 0; h < heads; ++h) {
      own.gap[h] += own_gap[h].item<double>();
      own.score[h] += own_score[0][h].item<double>();
      const std::vector<double> shares = mass_by_depth(*trees[n], meeting, attention[h]);
      if (mass[h].size() < shares.size()) mass[h].resize(shares.size(), 0.0);
      for (size_t depth = 0; depth < shares.size(); ++depth)
        mass[h][depth] += shares[depth] / static_cast<double>(inputs.size());
    }
    for (size_t b = 0; b < branchings.size(); ++b) {
      Tree balanced;
      TORCH_CHECK(balanced_tree(trees[n]->tokens(), branchings[b], Domain::kSet, &balanced).ok());
      others[b].cost += static_cast<double>(balanced.cost());
      const Tensor other_score = score_of(balanced), gaps = kl_gap(lse, other_score)[0];
      for (int64_t h = 0; h < heads; ++h) {
        others[b].gap[h] += gaps[h].item<double>();
        others[b].score[h] += other_score[0][h].item<double>();
      }
    }
  }
  Json json = Json::array();
  for (int64_t h = 0; h < heads; ++h) {
    Json alternatives = Json::array();
    for (size_t b = 0; b < branchings.size(); ++b) {
      alternatives.push_back({{"tree", "balanced " + std::to_string(branchings[b])},
                              {"hierarchy_score", others[b].score[h] / tokens},
                              {"kl_gap", others[b].gap[h] / tokens},
                              {"cost", others[b].cost / flat_cost}});
    }
    json.push_back({{"head", h},
                    {"mass_by_depth", mass[h]},
                    {"hierarchy_score", own.score[h] / tokens},
                    {"kl_gap", own.gap[h] / tokens},
                    {"cost", own.cost / flat_cost},
                    {"alternatives", alternatives}});
  }
  return json;
}

}  // namespace strata
