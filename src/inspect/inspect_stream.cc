#include "inspect/inspect_stream.h"

#include <cmath>

#include "base/stream_nodes.h"
#include "inspect/hkt_run.h"
#include "strata/hsa_stream.h"
#include "theory/certificate.h"
#include "torch/hkt_op.h"
#include "torch/hsa_op.h"

namespace strata {
namespace {

using torch::Tensor;

HsaStreamOptions options_of(const LayerScores& scores, const StreamForm& form) {
  HsaStreamOptions options;
  options.branching = form.branching;
  options.near = form.near;
  options.both_sides = form.both_sides;
  options.level_weights = scores.level_weights;
  return options;
}

// S of every head, (H, T, T): the products of all levels.
Tensor full_scores(const LayerScores& scores) {
  const int64_t T = scores.tokens(), H = scores.heads();
  Tensor sum = torch::zeros({H, T, T}, torch::kDouble);
  for (size_t l = 0; l < scores.q.size(); ++l) {
    const int64_t group = H / scores.k[l].size(1);
    auto spread = [&](const Tensor& x) { return x[0].repeat_interleave(int64_t{1} << l, 1).slice(1, 0, T); };
    const Tensor products =
        torch::matmul(spread(scores.q[l]), spread(scores.k[l]).repeat_interleave(group, 0).transpose(1, 2));
    sum += products * scores.level_weights.select(1, static_cast<int64_t>(l)).view({H, 1, 1});
  }
  return sum / std::sqrt(static_cast<double>(scores.q[0].size(3)));
}

// Score products over those of attention without a hierarchy.
double share_of_products(int64_t tokens, const StreamForm& form) {
  const auto T = static_cast<double>(tokens);
  const StreamProducts products = stream_products(tokens, form.branching, form.near, form.both_sides);
  return static_cast<double>(products.leaves + products.nodes) / (form.both_sides ? T * T : T * (T + 1) / 2);
}

// Sums over the rows of all sequences, per head, for one b and n.
struct FormSums {
  FormSums(StreamForm f, int64_t heads) : form(f), kl(heads, 0.0), range(heads, 0.0), bound(heads, 0.0) {}
  StreamForm form;
  std::vector<double> kl, range, bound;
  double cost = 0;

  void add(const LayerScores& scores, const Tensor& full_lse, const std::vector<Matrix>& all_scores) {
    const int64_t T = scores.tokens();
    const HsaStreamOptions options = options_of(scores, form);
    const Tensor v = torch::zeros({1, scores.k[0].size(1), T, 1}, torch::kDouble);
    const Tensor lse = std::get<1>(hsa_stream_attention(scores.q, scores.k, v, options));
    const Tensor gap = (full_lse - lse)[0].sum(1),
                 bounds = hsa_stream_certificate(scores.q, scores.k, options)[0].sum(1);
    for (size_t h = 0; h < kl.size(); ++h) {
      kl[h] += gap[static_cast<int64_t>(h)].item<double>();
      bound[h] += bounds[static_cast<int64_t>(h)].item<double>();
      for (const double delta : node_ranges(all_scores[h], form.branching, form.near, form.both_sides))
        range[h] += delta * delta / 8;
    }
    cost += share_of_products(T, form);
  }
  Json json(size_t head, double rows, double sequences) const {
    return {{"branching", form.branching},
            {"near", form.near},
            {"kl", kl[head] / rows},
            {"range_bound", range[head] / rows},
            {"certificate", bound[head] / rows},
            {"cost", cost / sequences}};
  }
};

}  // namespace

std::vector<Matrix> stream_attention_matrices(torch::nn::Module& layer, const Tensor& input) {
  const LayerScores scores = layer_scores(layer, input);
  const StreamForm form = stream_form(layer);
  const int64_t T = scores.tokens(), H = scores.heads(), d = scores.q[0].size(3);
  HsaStreamProblem p;
  p.dtype = DType::kFloat64;
  p.batch = 1;
  p.heads = H;
  p.key_heads = scores.k[0].size(1);
  p.tokens = T;
  p.branching = static_cast<int>(form.branching);
  p.near = static_cast<int>(form.near);
  p.both_sides = form.both_sides;
  p.levels = static_cast<int>(scores.q.size());
  p.head_size = p.value_size = static_cast<int>(d);
  p.scale = 1 / std::sqrt(static_cast<double>(d));
  for (int l = 0; l < p.levels; ++l) {
    p.q[l] = dense_view(scores.q[l].data_ptr(), H, scores.q[l].size(2), d);
    p.k[l] = dense_view(scores.k[l].data_ptr(), p.key_heads, scores.k[l].size(2), d);
  }
  p.v = p.k[0];  // not looked at
  p.level_weights = scores.level_weights.data_ptr();
  return head_matrices(H, T, [&](int64_t h, double* to) { return hsa_stream_materialize(p, 0, h, to); });
}

Json inspect_stream_layer(torch::nn::Module& layer, const std::vector<Tensor>& inputs) {
  torch::NoGradGuard no_grad;
  const StreamForm own = stream_form(layer);
  const int64_t heads = layer_scores(layer, inputs[0]).heads();
  std::vector<FormSums> forms = {FormSums(own, heads)};
  for (const int64_t branching : {4, 8, 16, 32})
    for (const int64_t near : {1, 2, 4}) forms.emplace_back(StreamForm{branching, near, own.both_sides}, heads);
  double rows = 0;
  for (const Tensor& input : inputs) {
    const LayerScores scores = layer_scores(layer, input);
    HktOptions hkt;
    hkt.causal = !own.both_sides;
    const Tensor v = torch::zeros({1, scores.k[0].size(1), scores.tokens(), 1}, torch::kDouble);
    const Tensor lse = std::get<1>(hkt_attention(scores.q, scores.k, v, scores.level_weights, hkt));
    const Tensor full = full_scores(scores);
    std::vector<Matrix> matrices;
    for (int64_t h = 0; h < heads; ++h) matrices.push_back(to_matrix(full[h]));
    for (FormSums& form : forms) form.add(scores, lse, matrices);
    rows += static_cast<double>(scores.tokens());
  }
  const auto sequences = static_cast<double>(inputs.size());
  Json json = Json::array();
  for (int64_t h = 0; h < heads; ++h) {
    Json head = forms[0].json(h, rows, sequences);
    head["head"] = h;
    head["alternatives"] = Json::array();
    for (size_t f = 1; f < forms.size(); ++f) head["alternatives"].push_back(forms[f].json(h, rows, sequences));
    json.push_back(std::move(head));
  }
  return json;
}

}  // namespace strata
