#include "inspect/inspect_tree.h"

#include <cmath>

#include "inspect/hkt_run.h"
#include "strata/hsa.h"
#include "theory/cost.h"
#include "theory/energy.h"
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
  double cost = 0, linear = 0, with_logarithm = 0;  // the last two of balanced trees: bounds of their cost
};

// Share of the attention at every depth of the tree, the token itself first; averaged over rows.
std::vector<double> mass_by_depth(const Tree& tree, const std::vector<int>& meeting, const Matrix& attention) {
  std::vector<double> mass(static_cast<size_t>(tree.depth()) + 1, 0.0);
  for (Eigen::Index pair = 0; pair < attention.size(); ++pair)
    mass[meeting[pair] + 1] += attention.data()[pair] / static_cast<double>(tree.tokens());
  return mass;
}

// A layer on one sequence and its tree, for the reference.
class TreeRun {
 public:
  TreeRun(const LayerScores& scores, const Tree& tree)
      : scores_(scores), tree_(tree), view_(tree.view()), v_(torch::zeros_like(scores.k[0])) {
    const int64_t H = scores_.heads(), d = scores_.q[0].size(3), key_heads = scores_.k[0].size(1);
    p_.dtype = DType::kFloat64;
    p_.sequences = 1;
    p_.trees = &view_;
    p_.batch_of = p_.first_token = &zero_;
    p_.heads = H;
    p_.key_heads = key_heads;
    p_.levels = static_cast<int>(scores_.q.size());
    p_.head_size = p_.value_size = static_cast<int>(d);
    p_.scale = 1 / std::sqrt(static_cast<double>(d));
    for (int l = 0; l < p_.levels; ++l) {
      p_.first_row[l] = &zero_;
      p_.q[l] = dense_view(scores_.q[l].data_ptr(), H, scores_.q[l].size(2), d);
      p_.k[l] = dense_view(scores_.k[l].data_ptr(), key_heads, scores_.k[l].size(2), d);
    }
    p_.v = dense_view(v_.data_ptr(), key_heads, tree.tokens(), d);
    p_.level_weights = scores_.level_weights.data_ptr();
    if (scores_.positions.defined()) {
      p_.positions = scores_.positions.data_ptr();
      p_.kinds = scores_.positions.size(1);
      p_.places = scores_.positions.size(2);
    }
  }
  TreeRun(const TreeRun&) = delete;  // p_ points into it
  TreeRun& operator=(const TreeRun&) = delete;

  std::vector<Matrix> attention() const {
    return head_matrices(p_.heads, tree_.tokens(),
                         [&](int64_t h, double* to) { return hsa_materialize(p_, 0, h, to); });
  }

  // f(root) of every head, with position terms.
  std::vector<double> root_scores() const {
    std::vector<double> roots(static_cast<size_t>(p_.heads));
    HsaOutputs outputs;
    outputs.score = roots.data();
    const Status status = hsa_forward_ref(p_, outputs);
    TORCH_CHECK(status.ok(), status.message());
    return roots;
  }

  // S_ij of a head, with position terms.
  Matrix pair_scores(int64_t h) const {
    const int64_t T = tree_.tokens(), key_head = h / (p_.heads / p_.key_heads);
    Matrix S = Matrix::Zero(T, T);
    for (int l = 0; l < p_.levels; ++l) {
      const Matrix q = to_matrix(scores_.q[l][0][h]), k = to_matrix(scores_.k[l][0][key_head]);
      S += p_.scale * scores_.level_weights[h][l].item<double>() * upsample(q * k.transpose(), l, T);
    }
    if (p_.positions != nullptr) {
      const auto* table = static_cast<const double*>(p_.positions) + h * p_.kinds * p_.places * p_.places;
      add_position_terms(tree_, table, p_.places, S);
    }
    return S;
  }

 private:
  LayerScores scores_;
  const Tree& tree_;
  TreeView view_;
  Tensor v_;
  int64_t zero_ = 0;
  HsaProblem p_;
};

// |entropy form at the attention - |root| f(root)| of every head, in nats per token (docs/theory/hsa.md).
std::vector<double> energy_residuals(const TreeRun& run, const std::vector<Matrix>& attention) {
  const std::vector<double> roots = run.root_scores();
  std::vector<double> residuals;
  for (size_t h = 0; h < attention.size(); ++h) {
    const Eigen::Index T = attention[h].rows();
    const double value = entropy_form(attention[h], run.pair_scores(static_cast<int64_t>(h)), Vector::Ones(T));
    residuals.push_back(std::abs(value / static_cast<double>(T) - roots[h]));
  }
  return residuals;
}

}  // namespace

std::vector<Matrix> tree_attention_matrices(torch::nn::Module& layer, const Tensor& input, const Tree& tree) {
  return TreeRun(layer_scores(layer, input), tree).attention();
}

Json inspect_tree_layer(torch::nn::Module& layer, const std::vector<Tensor>& inputs,
                        const std::vector<std::shared_ptr<const Tree>>& trees) {
  torch::NoGradGuard no_grad;
  const int64_t heads = layer_scores(layer, inputs[0]).heads();
  const std::vector<int64_t> branchings = {2, 4, 8, 16, 32};
  std::vector<std::vector<double>> mass(heads);
  std::vector<double> energy;  // of the first sequence
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
    const TreeRun run(scores, *trees[n]);
    const std::vector<Matrix> attention = run.attention();
    if (n == 0) energy = energy_residuals(run, attention);
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
      const CostBounds bounds = balanced_cost_bounds(balanced.tokens(), branchings[b]);
      others[b].linear += bounds.linear;
      others[b].with_logarithm += bounds.with_logarithm;
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
                              {"cost", others[b].cost / flat_cost},
                              {"linear_bound", others[b].linear / flat_cost},
                              {"logarithm_bound", others[b].with_logarithm / flat_cost}});
    }
    json.push_back({{"head", h},
                    {"mass_by_depth", mass[h]},
                    {"hierarchy_score", own.score[h] / tokens},
                    {"kl_gap", own.gap[h] / tokens},
                    {"energy", energy[h]},
                    {"cost", own.cost / flat_cost},
                    {"alternatives", alternatives}});
  }
  return json;
}

}  // namespace strata
