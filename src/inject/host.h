// A trained softmax transformer that takes HSA in: a Hugging Face folder, or a run of `strata train` with flat
// attention.
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hub/pretrained.h"
#include "strata/tree.h"
#include "tokenizer/tokenizer.h"

namespace strata {

// A text as a host reads it.
struct HostText {
  std::string text;
  Encoding encoding;
  std::vector<int64_t> special;  // tokens that stand for no text ([CLS], [SEP])
  bool cut = false;              // the text was longer

  int64_t tokens() const { return static_cast<int64_t>(encoding.ids.size()); }
};

struct HostOutput {
  torch::Tensor features;  // (batch, hidden): mean of the last hidden states; only of Hugging Face models
  torch::Tensor logits;    // (batch, classes) of the model's own head, if it has one
  torch::Tensor loss;      // (batch): nats that its next tokens cost a causal model, summed
};

class Host {
 public:
  // length: tokens of a text at most; 0: as many as the model has positions. Throws data, usage and output errors.
  static std::unique_ptr<Host> open(const std::filesystem::path& path, int64_t length = 0);
  virtual ~Host() = default;

  virtual int64_t layers() const = 0;
  virtual int64_t heads() const = 0;
  virtual int64_t hidden() const = 0;
  virtual bool is_causal() const = 0;
  virtual int64_t positions() const = 0;                       // tokens that it could read
  virtual const std::vector<std::string>& labels() const = 0;  // of its own head; empty: it has none
  virtual bool has_features() const = 0;                       // to fit another head on
  virtual HostText read(const std::string& text) const = 0;
  virtual std::vector<std::string> show(const HostText& text) const = 0;  // every token as people read it
  // The tree that the text itself has (paragraphs and sentences, lists in brackets), families of at most `branching`.
  virtual Tree natural_tree(const HostText& text, int64_t branching) const = 0;

  // texts must not be empty.
  HostOutput run(const std::vector<HostText>& texts, const AttentionFunction& attention);
  // Time goes by tokens, so it can be measured on any of them.
  virtual HostOutput run(const torch::Tensor& ids, const torch::Tensor& lengths,
                         const AttentionFunction& attention) = 0;

  int64_t longest() const { return longest_; }

 protected:
  int64_t longest_ = 0;
};

}  // namespace strata
