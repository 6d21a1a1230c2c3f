// Text from language models: folders of GPT-2, Llama or Qwen2, original or with streaming HSA in some layers, and runs
// of `strata train --task text`. Each token takes one step with the caches of the attention. This header does not
// include torch, so that the command does not need to.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "generate/sample.h"
#include "util/options.h"

namespace strata {

struct GenerateOptions {
  SampleOptions sample;
  int64_t tokens = 200;  // at most
  int64_t seed = 1;
  std::vector<std::string> stops;  // texts that end the generation; they are not part of the text
  std::string layers = "none";     // of a folder: those that attend by streaming HSA: none, late, or numbers from 0
  int64_t branching = 16;          // of these layers
  std::string device = "cpu";      // or "cuda"
  bool check_digest = true;        // refuse weights that differ from the digest in their file
};
void declare(OptionTable& table, GenerateOptions& options);

struct Generated {
  std::string text;
  std::vector<int64_t> ids;  // of its tokens, those of a stop text included
  int64_t prompt_tokens = 0, tokens = 0;
  std::string ended = "tokens";  // "tokens", "stop", "end of text" or "interrupt"
  double prompt_seconds = 0, seconds = 0;
  int64_t cache_bytes = 0;  // at the end
  // Of caches that grow with the logarithm of the text, otherwise 0: nodes in each layer, their bytes in all layers,
  // and what keys and values of every token would take.
  int64_t cache_nodes = 0, node_bytes = 0, every_token_bytes = 0;
};

class LanguageModel;  // generate/language_model.h

class Generator {
 public:
  Generator(const std::string& model, const GenerateOptions& options);  // throws data and usage errors
  ~Generator();
  // Continues the prompt, and passes every piece of text to `write` as soon as it cannot change any more.
  Generated operator()(const std::string& prompt, const std::function<void(std::string_view)>& write);

 private:
  GenerateOptions options_;
  std::unique_ptr<LanguageModel> model_;
};

}  // namespace strata
