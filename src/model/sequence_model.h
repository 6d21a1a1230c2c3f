// A pre-norm transformer over tokens: a classifier of whole rows, or a causal language model. Its blocks are those of
// GPT-2 ("classic") or of Llama ("modern").
#pragma once

#include <torch/torch.h>

#include <vector>

#include "model/attention.h"

namespace strata {

//   x_0 = embed(tokens) + positions;   with frozen embeddings E (shape.frozen), embed(tokens) = W E[tokens] + b
//   x'  = x + attention(norm(x)),   x'' = x' + ffn(norm(x'))                 for every block
//   classic: LayerNorm, ffn(x) = W_2 gelu(W_1 x + b_1) + b_2;   modern (model/modern.h): RMSNorm, SwiGLU, no biases
//   outputs = head(pool(norm(x)))   or, of a language model, head(norm(x)) at every token
class SequenceModelImpl : public torch::nn::Module {
 public:
  // `attention` creates the attention of each block; pass another function to compare with other attentions.
  SequenceModelImpl(const ModelConfig& config, const ModelShape& shape,
                    const AttentionMaker& attention = make_attention);

  // (B, classes), or (B, T, vocabulary) of a language model.
  torch::Tensor forward(const ModelInput& input);

  // Appends the input of the attention of each block, (B, T, model) each. If a block fails, for example because its
  // weights are not finite, `read` holds the inputs up to that block.
  void attention_inputs(const ModelInput& input, std::vector<torch::Tensor>& read) { run(input, &read); }
  std::shared_ptr<torch::nn::Module> attention(int64_t layer) const { return blocks_[layer].attention.module; }

  // A language model, one token at a time: (vocabulary) logits of the token after `token`. Equals forward(), to
  // rounding. No gradients.
  struct Stream {
    std::vector<std::unique_ptr<AttentionStream>> layers;
    int64_t length = 0;  // tokens seen; at most `shape.length` if the model has positions
    int64_t bytes() const;
  };
  Stream start_stream() const;
  torch::Tensor step(int64_t token, Stream& stream);
  // The logits after the last of several tokens, at least one. An empty stream reads them in one pass.
  torch::Tensor read(const std::vector<int64_t>& tokens, Stream& stream);

  // Of a model with frozen embeddings: the rows of the words, (vocabulary - 2, frozen); padding and unknown words have
  // zeros. The map is scaled so that tokens begin with channels near 1, as learned embeddings do.
  void freeze_embeddings(const torch::Tensor& words);

  int64_t parameter_count() const;  // without the frozen ones

  const ModelConfig config;
  const ModelShape shape;

 private:
  using Part = std::function<torch::Tensor(const torch::Tensor& x)>;
  struct Block {
    Part attention_norm, ffn;  // ffn: its norm included
    AttentionModule attention;
  };
  Part make_norm(const std::string& name);
  Part make_ffn(const std::string& prefix);

  // The final states; `read`, if given, receives the input of each attention.
  torch::Tensor run(const ModelInput& input, std::vector<torch::Tensor>* read);
  torch::Tensor embed(const ModelInput& input);
  torch::Tensor embed_each(const torch::Tensor& tokens) const;
  torch::Tensor pool(const torch::Tensor& x, const ModelInput& input) const;
  torch::Tensor drop(const torch::Tensor& x, const ModelInput& input, int64_t place) const;

  torch::nn::Embedding embedding_{nullptr};  // null with frozen embeddings, which have:
  torch::Tensor frozen_;                     // (vocabulary, frozen), a buffer
  torch::nn::Linear map_{nullptr};
  torch::Tensor positions_;  // (length, model): a parameter, a constant, or undefined
  std::vector<Block> blocks_;
  Part norm_;
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(SequenceModel);

// The sinusoids of Vaswani et al. 2017: (length, size).
torch::Tensor sinusoidal_embedding(int64_t length, int64_t size);

}  // namespace strata
