// A language model with caches of the tokens it has read: what Generator draws from.
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "generate/generator.h"

namespace strata {

// What the caches hold after some tokens.
struct CacheSize {
  int64_t bytes = 0;
  int64_t nodes = 0;       // in each layer, of a cache that grows with the logarithm of the text; 0: another kind
  int64_t node_bytes = 0;  // of these, in all layers
  int64_t every_token_bytes = 0;  // what keys and values of every token would take
};

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  virtual std::vector<int64_t> encode(const std::string& text) const = 0;  // never empty
  virtual std::string decode(int64_t token) const = 0;
  virtual bool is_end(int64_t) const { return false; }  // of a text
  virtual int64_t longest() const = 0;                  // largest number of tokens in the caches; 0: no limit
  virtual CacheSize cache() const = 0;
  // Reads tokens after those in the caches. Returns the logits of the next token.
  virtual torch::Tensor read(const std::vector<int64_t>& tokens) = 0;
  virtual void forget() = 0;  // empties the caches
};

// A Hugging Face folder of GPT-2, Llama or Qwen2, with streaming HSA in the layers that the options name.
std::unique_ptr<LanguageModel> open_hub(const std::filesystem::path& folder, const GenerateOptions& options);
// A run of `strata train --task text`: a byte model with any attention.
std::unique_ptr<LanguageModel> open_trained(const std::filesystem::path& path, const GenerateOptions& options);

}  // namespace strata
