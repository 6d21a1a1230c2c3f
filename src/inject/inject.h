// HSA in place of softmax in chosen layers of a pretrained transformer, with the same queries, keys and values, and
// without training.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hub/pretrained.h"
#include "strata/tree.h"
#include "tokenizer/tokenizer.h"

namespace strata {

// Paragraphs and sentences of the text over its tokens, with families of at most `most` children. Special tokens are
// siblings of the paragraphs. A text that is not UTF-8 gets a balanced tree.
Tree sentence_tree(const std::string& text, const Encoding& encoding, int64_t most);

// The number of products of q and k, and of probabilities and values, per head and channel: 2 T^2 for flat attention.
struct AttentionCost {
  double flat = 0;   // with softmax
  double spent = 0;  // with the injection
};

struct Injection {
  // For each injected layer, candidates for the tree, each with one tree (encode_tree) per sequence of a batch. Every
  // sequence uses the candidate closest to softmax, by the hierarchy score.
  std::map<int64_t, std::vector<std::vector<torch::Tensor>>> trees;
  // Causal models attend by streaming HSA instead: the branching of each injected layer.
  std::map<int64_t, int64_t> streams;
  std::vector<std::vector<int64_t>> exact;            // per sequence: tokens that attend to all tokens; may be empty
  std::shared_ptr<std::vector<AttentionCost>> costs;  // one per layer; null: not counted
};
// The attention to give to a model: HSA in the layers of the injection, `softmax` elsewhere.
AttentionFunction inject_hsa(const AttentionFunction& softmax, Injection injection, bool causal);

// KL(HSA || softmax) in nats per token, (batch), mean over heads, of one layer's q and k, (batch, heads, tokens,
// channels), on one tree per sequence, or of the streaming form. It needs no labels.
torch::Tensor tree_gap(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& lengths,
                       const std::vector<torch::Tensor>& trees);
torch::Tensor stream_gap(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& lengths,
                         int64_t branching);

// Sum over families of children^2; tree: from encode_tree.
double tree_cost(const torch::Tensor& encoded);

}  // namespace strata
