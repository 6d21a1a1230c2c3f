// Text from language models: GPT-2 folders, original or with streaming HSA in some layers, and runs of `strata train
// --task text`. Every token costs one step, with what the attention remembers. Knows no torch, so that the command need
// not.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "generate/sample.h"

namespace strata {

struct GenerateOptions {
  SampleOptions sample;
  int64_t tokens = 200;  // at most
  uint64_t seed = 1;
  std::vector<std::string> stops;  // texts that end it; they are not given out
  std::string layers = "none";     // of GPT-2, that attend by streaming HSA: none, late, or numbers from 0
  int64_t branching = 16;          // of these
};

struct Generated {
  std::string text;
  int64_t prompt_tokens = 0, tokens = 0;
  std::string ended;  // "tokens", "stop", "end of text" or "interrupt"
  double prompt_seconds = 0, seconds = 0;
  int64_t cache_bytes = 0;  // remembered at the end
};

class Generator {
 public:
  Generator(const std::string& model, const GenerateOptions& options);  // throws data and usage errors
  ~Generator();
  // Goes on from the prompt, and gives every piece of text to `write` as soon as it is certain.
  Generated operator()(const std::string& prompt, const std::function<void(std::string_view)>& write);

  class Model;  // what generates: see generator.cc

 private:
  GenerateOptions options_;
  std::unique_ptr<Model> model_;
};

}  // namespace strata
