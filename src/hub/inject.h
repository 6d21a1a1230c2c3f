// HSA in place of softmax in chosen layers of a pretrained transformer: the same queries, keys and values, nothing is
// trained.
#pragma once

#include <string>
#include <vector>

#include "hub/pretrained.h"
#include "strata/tree.h"
#include "tokenizer/tokenizer.h"

namespace strata {

// Paragraphs and sentences of the text over its tokens, families of at most `most` children; special tokens stand
// beside the paragraphs. A text that cannot be read (no UTF-8) gets a balanced tree.
Tree sentence_tree(const std::string& text, const Encoding& encoding, int64_t most);

struct Injection {
  std::vector<int64_t> layers;              // which attend by the tree; the others stay as they are
  std::vector<torch::Tensor> trees;         // of each sequence of a batch, encoded (encode_tree); not for causal models
  std::vector<std::vector<int64_t>> exact;  // of each sequence, tokens that go on attending to all of it; may be empty
  int64_t branching = 16;                   // of the streaming form, for causal models
};
// The attention to give to a model: HSA in the layers of the injection, `softmax` elsewhere.
AttentionFunction inject_hsa(const AttentionFunction& softmax, Injection injection, bool causal);

// KL(HSA || softmax) in nats per token, (batch), mean over heads, of one layer's q and k: (batch, heads, tokens,
// channels). No labels are needed to know it.
torch::Tensor injection_gap(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& lengths,
                            const Injection& injection, bool causal);

}  // namespace strata
