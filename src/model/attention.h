// The attentions of a sequence model, by name. docs/ADD_AN_ATTENTION.md says how to add one.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/model_config.h"

namespace strata {

struct ModelInput {
  torch::Tensor tokens;              // (B, T) int64, 0 is padding on the right
  torch::Tensor lengths;             // (B) int64
  std::vector<torch::Tensor> trees;  // one per row, as encode_tree gives them; of attention on trees only
  torch::Tensor dropout_keys = {};  // (B) int64: dropout by rows (model/row_dropout.h); undefined: by torch's generator
};

// Causal attention, one token at a time.
class AttentionStream {
 public:
  virtual ~AttentionStream() = default;
  virtual torch::Tensor step(const torch::Tensor& x) = 0;  // (1, model) to (1, model)
  // Reads a prompt, (1, T, model) to (1, T, model), into an empty stream; step by step where a stream has nothing
  // better.
  virtual torch::Tensor prefill(const torch::Tensor& x);
  virtual int64_t bytes() const = 0;  // size of its cache
};

struct AttentionModule {
  std::shared_ptr<torch::nn::Module> module;
  // (B, T, model) to (B, T, model); padding rows may hold anything finite.
  std::function<torch::Tensor(const torch::Tensor& x, const ModelInput& input)> forward;
  std::function<std::unique_ptr<AttentionStream>()> stream = {};  // of a language model
};
using AttentionMaker = std::function<AttentionModule(const ModelConfig& config, const ModelShape& shape)>;

// What belongs to a name. Makers throw c10::Error for options that do not fit, and make a causal module where the shape
// is a language model's.
struct AttentionKind {
  AttentionMaker make;
  // Score products over flat attention's, for rows of shape.length tokens.
  std::function<double(const ModelConfig& config, const ModelShape& shape)> score_ratio;
  // A classifier attends on one tree per row, unless its tree is "none", and the trees' cost takes the place of
  // score_ratio.
  bool trees = false;
};

// Adds an attention; its name joins attention_names().
void register_attention(const std::string& name, AttentionKind kind);
const AttentionKind& find_attention(const std::string& name);
AttentionModule make_attention(const ModelConfig& config, const ModelShape& shape);

// Whether rows need trees.
bool wants_trees(const ModelConfig& config, const ModelShape& shape);

}  // namespace strata
