// A trained softmax transformer that HSA is injected into: a Hugging Face folder, or a run of `strata train` with flat
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
  std::vector<int64_t> special;  // tokens without text ([CLS], [SEP])
  bool cut = false;              // the text was longer

  int64_t tokens() const { return static_cast<int64_t>(encoding.ids.size()); }
};

struct HostOutput {
  torch::Tensor features;  // (batch, hidden): mean of the last hidden states; only from Hugging Face models
  torch::Tensor logits;    // (batch, classes) of the model's own head, if it has one
  torch::Tensor loss;      // (batch): causal models: sum of the losses of the next tokens, in nats
};

class Host {
 public:
  // length: largest number of tokens of a text; 0: as many as the model has positions. Throws data, usage and output
  // errors.
  static std::unique_ptr<Host> open(const std::filesystem::path& path, int64_t length = 0, bool check_digest = true);
  virtual ~Host() = default;

  virtual int64_t layers() const = 0;
  virtual int64_t heads() const = 0;
  virtual int64_t key_heads() const = 0;
  virtual int64_t head_size() const = 0;
  virtual int64_t hidden() const = 0;
  virtual bool is_causal() const = 0;
  virtual int64_t positions() const = 0;                       // largest number of tokens that it can read
  virtual const std::vector<std::string>& labels() const = 0;  // of its own head; empty: no head
  virtual bool has_features() const = 0;                       // for a linear head
  virtual HostText read(const std::string& text) const = 0;
  virtual std::vector<std::string> show(const HostText& text) const = 0;  // every token as text
  // The tree of the text itself (paragraphs and sentences, lists in brackets), with families of at most `branching`.
  virtual Tree natural_tree(const HostText& text, int64_t branching) const = 0;

  // texts must not be empty.
  HostOutput run(const std::vector<HostText>& texts, const AttentionFunction& attention);
  // For measuring time, which depends only on the number of tokens.
  virtual HostOutput run(const torch::Tensor& ids, const torch::Tensor& lengths,
                         const AttentionFunction& attention) = 0;

  int64_t longest() const { return longest_; }

 protected:
  int64_t longest_ = 0;
};

}  // namespace strata
