#include "inject/inject.h"

#include <algorithm>

#include "strata/document.h"
#include "strata/hsa_stream.h"
#include "torch/hkt_op.h"
#include "torch/hsa_op.h"
#include "util/error.h"

namespace strata {
namespace {

using torch::Tensor;

void check(const Status& status) {
  if (!status.ok()) throw data_error("tree: {}", status.message());
}

// The family that holds each word of a document, and the parent of each family.
struct Parents {
  explicit Parents(const Document& document)
      : of_word(document.leaves.size(), 0), of_family(document.tree.families(), -1) {
    const auto& begin = document.tree.child_begin();
    const auto& children = document.tree.children();
    for (int64_t family = 0; family < document.tree.families(); ++family) {
      for (int32_t at = begin[family]; at < begin[family + 1]; ++at) {
        if (children[at] < 0) {
          of_family[~children[at]] = family;
        } else {
          of_word[children[at]] = family;
        }
      }
    }
  }
  std::vector<int64_t> of_word, of_family;
};

Tensor flat_lse(const Tensor& q, const Tensor& k, const Tensor& lengths, bool causal) {
  HktOptions options;
  options.causal = causal;
  options.lengths = lengths;
  return std::get<1>(hkt_attention({q}, {k}, k, torch::ones({q.size(1), 1}, q.options()), options));
}

// 1 for real tokens, 0 for padding: (batch, tokens).
Tensor token_weights(const Tensor& q, const Tensor& lengths) {
  return (torch::arange(q.size(2)).unsqueeze(0) < lengths.unsqueeze(1)).to(q.scalar_type());
}

}  // namespace

Tree sentence_tree(const std::string& text, const Encoding& encoding, int64_t most) {
  const auto tokens = static_cast<int64_t>(encoding.ids.size());
  Tree tree, split;
  Document document;
  if (!document_from_text(text, TextLeaf::kWord, &document).ok() || document.leaves.empty()) {
    check(balanced_tree(tokens, most, Domain::kSequence, &tree));
    return tree;
  }
  const Parents parents(document);
  // Nodes: tokens first, then the families of the document that hold tokens.
  std::vector<int64_t> family_of(tokens, 0);  // the root, for tokens without text
  std::vector<bool> used(parents.of_family.size(), false);
  used[0] = true;
  for (int64_t t = 0; t < tokens; ++t) {
    const TextRange place = encoding.places[t];
    if (place.begin >= place.end) continue;
    const auto behind = std::upper_bound(document.leaves.begin(), document.leaves.end(), place.end - 1,
                                         [](int64_t at, const Document::Leaf& leaf) { return at < leaf.begin; });
    if (behind == document.leaves.begin()) continue;
    family_of[t] = parents.of_word[behind - document.leaves.begin() - 1];
    for (int64_t family = family_of[t]; family >= 0 && !used[family]; family = parents.of_family[family])
      used[family] = true;
  }
  std::vector<int64_t> number(used.size(), -1), parent;
  int64_t nodes = tokens;
  for (size_t family = 0; family < used.size(); ++family) {
    if (used[family]) number[family] = nodes++;
  }
  for (int64_t t = 0; t < tokens; ++t) parent.push_back(number[family_of[t]]);
  for (size_t family = 0; family < used.size(); ++family) {
    if (used[family]) parent.push_back(family == 0 ? -1 : number[parents.of_family[family]]);
  }
  check(tree_from_parents(parent, Domain::kSequence, &tree));
  check(split_families(tree, most, &split));
  return split;
}

double tree_cost(const Tensor& encoded) {
  const auto* numbers = encoded.data_ptr<int32_t>();
  return static_cast<double>(TreeView{numbers[0], numbers[1], numbers + 2}.cost());
}

namespace {

// For each sequence the candidate with the largest hierarchy score, summed over heads: the one closest to softmax.
std::vector<Tensor> closest(const Tensor& q, const Tensor& k, const std::vector<std::vector<Tensor>>& candidates) {
  if (candidates.size() == 1) return candidates[0];
  std::vector<Tensor> scores;
  for (const std::vector<Tensor>& trees : candidates) scores.push_back(hierarchy_score(q, k, trees).sum(-1));
  const Tensor best = torch::stack(scores).argmax(0);
  std::vector<Tensor> chosen;
  for (int64_t b = 0; b < best.size(0); ++b) chosen.push_back(candidates[best[b].item<int64_t>()][b]);
  return chosen;
}

// Rows of `out` by softmax over all real tokens.
void attend_exactly(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths,
                    const Injection& injection, const Tensor& out) {
  for (size_t b = 0; b < injection.exact.size(); ++b) {
    if (injection.exact[b].empty()) continue;
    const Tensor rows = torch::tensor(injection.exact[b]).to(q.device());
    const auto sequence = static_cast<int64_t>(b), length = lengths[sequence].item<int64_t>();
    const int64_t group = q.size(1) / k.size(1);  // query heads that share a key head
    const Tensor keys = k[sequence].narrow(1, 0, length).repeat_interleave(group, 0);
    const Tensor values = v[sequence].narrow(1, 0, length).repeat_interleave(group, 0);
    const Tensor scores = torch::matmul(q[sequence].index_select(1, rows), keys.transpose(-1, -2)) /
                          std::sqrt(static_cast<double>(q.size(3)));
    out[sequence].index_copy_(1, rows, torch::matmul(torch::softmax(scores, -1), values));
  }
}

// Choosing among several trees needs the scores of all of them, but no values.
double spent_on_trees(const std::vector<Tensor>& chosen, const std::vector<std::vector<Tensor>>& candidates) {
  double spent = 0;
  for (const Tensor& tree : chosen) spent += 2 * tree_cost(tree);
  for (const std::vector<Tensor>& trees : candidates) {
    for (size_t b = 0; b < trees.size() && candidates.size() > 1; ++b) spent += tree_cost(trees[b]);
  }
  return spent;
}

// The cost of softmax, and of the rows that every injected layer computes exactly.
AttentionCost fixed_cost(const Tensor& lengths, const Injection& injection, bool causal) {
  AttentionCost cost;
  for (int64_t b = 0; b < lengths.size(0); ++b) {
    const auto length = lengths[b].item<double>();
    cost.flat += causal ? length * (length + 1) : 2 * length * length;
    if (!injection.exact.empty()) cost.spent += 2 * static_cast<double>(injection.exact[b].size()) * length;
  }
  return cost;
}

}  // namespace

AttentionFunction inject_hsa(const AttentionFunction& softmax, Injection injection, bool causal) {
  return [softmax, injection = std::move(injection), causal](int64_t layer, const Tensor& q, const Tensor& k,
                                                             const Tensor& v, const Tensor& lengths) {
    auto count = [&](const std::function<double(const AttentionCost&)>& spent) {
      if (injection.costs == nullptr) return;
      const AttentionCost fixed = fixed_cost(lengths, injection, causal);
      injection.costs->at(layer).flat += fixed.flat;
      injection.costs->at(layer).spent += spent(fixed);
    };
    if (const auto stream = injection.streams.find(layer); stream != injection.streams.end()) {
      count([&](const AttentionCost&) {
        double spent = 0;
        for (int64_t b = 0; b < lengths.size(0); ++b)
          spent +=
              2 * static_cast<double>(hsa_stream_cost(lengths[b].item<int64_t>(), static_cast<int>(stream->second)));
        return spent;
      });
      HsaStreamOptions options;
      options.branching = stream->second;  // padding comes after all tokens, so no token sees it
      return std::get<0>(hsa_stream_attention(q, k, v, options));
    }
    const auto candidates = injection.trees.find(layer);
    if (candidates == injection.trees.end()) {
      count([](const AttentionCost& fixed) { return fixed.flat; });
      return softmax(layer, q, k, v, lengths);
    }
    const std::vector<Tensor> trees = closest(q, k, candidates->second);
    count([&](const AttentionCost& fixed) { return fixed.spent + spent_on_trees(trees, candidates->second); });
    Tensor out = std::get<0>(hsa_attention(q, k, v, trees));
    attend_exactly(q, k, v, lengths, injection, out);
    return out;
  };
}

Tensor tree_gap(const Tensor& q, const Tensor& k, const Tensor& lengths, const std::vector<Tensor>& trees) {
  torch::NoGradGuard no_grad;
  const Tensor weights = token_weights(q, lengths), lse = flat_lse(q, k, lengths, false);
  const Tensor real = torch::where(weights.unsqueeze(1) > 0, lse, torch::zeros_like(lse));
  return kl_gap(real, hierarchy_score(q, k, trees), weights).mean(-1) / lengths;
}

Tensor stream_gap(const Tensor& q, const Tensor& k, const Tensor& lengths, int64_t branching) {
  torch::NoGradGuard no_grad;
  HsaStreamOptions options;
  options.branching = branching;
  const Tensor lse = flat_lse(q, k, lengths, true), stream = std::get<1>(hsa_stream_attention(q, k, k, options));
  const Tensor real = token_weights(q, lengths).unsqueeze(1) > 0;
  return torch::where(real, lse - stream, torch::zeros_like(lse)).sum(-1).mean(-1) / lengths;
}

}  // namespace strata
