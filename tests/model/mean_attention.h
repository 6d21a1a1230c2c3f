// The steps of docs/ADD_AN_ATTENTION.md, performed: an attention "mean" that gives every token the mean of all tokens
// (of a language model: of the tokens up to it). The tests run it wherever they run flat, hkt and hsa.
#pragma once

#include "model/attention.h"

namespace strata {

// Step 1: the module.
struct MeanAttentionImpl : torch::nn::Module {
  MeanAttentionImpl(int64_t model_size, bool causal_)
      : causal(causal_), value(register_module("value", torch::nn::Linear(model_size, model_size))) {}

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& lengths) {
    const torch::Tensor place = torch::arange(x.size(1), lengths.options());
    const torch::Tensor real = (place < lengths.unsqueeze(1)).unsqueeze(-1);
    const torch::Tensor values = torch::where(real, value(x), torch::zeros({}, x.options()));
    if (causal) return values.cumsum(1) / (place + 1).view({1, -1, 1});
    return (values.sum(1, true) / lengths.clamp_min(1).view({-1, 1, 1})).expand_as(x);
  }

  bool causal;
  torch::nn::Linear value;
};
TORCH_MODULE(MeanAttention);

class MeanStream : public AttentionStream {
 public:
  explicit MeanStream(MeanAttention module) : module_(std::move(module)) {}
  torch::Tensor step(const torch::Tensor& x) override {
    const torch::Tensor value = module_->value(x);
    sum_ = sum_.defined() ? sum_ + value : value;
    return sum_ / static_cast<double>(++tokens_);
  }
  int64_t bytes() const override { return sum_.defined() ? static_cast<int64_t>(sum_.nbytes()) : 0; }

 private:
  MeanAttention module_;
  torch::Tensor sum_;
  int64_t tokens_ = 0;
};

// Steps 2 to 4: the maker, its options (it has none of its own), and the cost, under a name.
inline void register_mean_attention() {
  auto make = [](const ModelConfig& config, const ModelShape& shape) -> AttentionModule {
    MeanAttention module(config.model_size, shape.next_token);
    return {
        module.ptr(),
        [module](const torch::Tensor& x, const ModelInput& input) mutable { return module->forward(x, input.lengths); },
        [module] { return std::make_unique<MeanStream>(module); }};
  };
  register_attention("mean", {make, [](const ModelConfig&, const ModelShape&) { return 0.0; }});
}

// Step 5: the names that the tests go through.
inline const std::vector<std::string>& all_attentions() {
  register_mean_attention();
  return attention_names();
}

}  // namespace strata
