// HSA in place of softmax in chosen layers of a pretrained transformer: the same queries, keys and values, nothing is
// trained.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hub/pretrained.h"
#include "strata/tree.h"
#include "tokenizer/tokenizer.h"

namespace strata {

// Paragraphs and sentences of the text over its tokens, families of at most `most` children; special tokens stand
// beside the paragraphs. A text that cannot be read (no UTF-8) gets a balanced tree.
Tree sentence_tree(const std::string& text, const Encoding& encoding, int64_t most);

// Products of q and k, and of probabilities and values, that an attention needs, per head and channel: 2 T^2 of flat
// attention.
struct AttentionCost {
  double flat = 0;   // what softmax would have needed
  double spent = 0;  // what was done
};

struct Injection {
  // Of each injected layer, candidates for the tree, each with one tree (encode_tree) per sequence of a batch. Of
  // several candidates every sequence takes the one closest to softmax, by the hierarchy score.
  std::map<int64_t, std::vector<std::vector<torch::Tensor>>> trees;
  // Causal models attend by streaming HSA instead: the branching of each injected layer.
  std::map<int64_t, int64_t> streams;
  std::vector<std::vector<int64_t>> exact;  // of each sequence, tokens that go on attending to all of it; may be empty
  std::shared_ptr<std::vector<AttentionCost>> costs;  // one per layer; counted when it is there
};
// The attention to give to a model: HSA in the layers of the injection, `softmax` elsewhere.
AttentionFunction inject_hsa(const AttentionFunction& softmax, Injection injection, bool causal);

// KL(HSA || softmax) in nats per token, (batch), mean over heads, of one layer's q and k, (batch, heads, tokens,
// channels), on one tree per sequence, or of the streaming form. No labels are needed to know it.
torch::Tensor tree_gap(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& lengths,
                       const std::vector<torch::Tensor>& trees);
torch::Tensor stream_gap(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& lengths,
                         int64_t branching);

// sum over families of children^2, of a tree as encode_tree gives it.
double tree_cost(const torch::Tensor& encoded);
// Entries that the tokens of a causal sequence see, by streaming HSA: 1 + the digits of t in base b, over all t.
double stream_cost(int64_t tokens, int64_t branching);

}  // namespace strata
