#include "model/embedding.h"

#include <ATen/Context.h>

namespace strata {
namespace {

using torch::Tensor;

// torch's deterministic algorithms, for the lifetime of this object.
class DeterministicGuard {
 public:
  DeterministicGuard()
      : before_(at::globalContext().deterministicAlgorithms()),
        warned_(at::globalContext().deterministicAlgorithmsWarnOnly()) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  ~DeterministicGuard() { at::globalContext().setDeterministicAlgorithms(before_, warned_); }
  DeterministicGuard(const DeterministicGuard&) = delete;
  DeterministicGuard& operator=(const DeterministicGuard&) = delete;

 private:
  bool before_, warned_;
};

// Sums the rows of `gradient` (tokens, size) by token: (vocabulary, size). On a GPU, a product with a matrix of zeros
// and ones is the fastest way up to a certain size (docs/PERFORMANCE.md), faster than atomics; above it, torch sorts.
Tensor sum_by_token(const Tensor& gradient, const Tensor& tokens, int64_t vocabulary) {
  constexpr int64_t kMostInMatrix = int64_t{1} << 25;
  if (gradient.is_cuda() && vocabulary * tokens.numel() <= kMostInMatrix) {
    const Tensor chosen = torch::zeros({vocabulary, tokens.numel()}, gradient.options());
    return chosen.scatter_(0, tokens.reshape({1, -1}), 1).mm(gradient.reshape({tokens.numel(), -1}));
  }
  const DeterministicGuard deterministic;
  return at::embedding_dense_backward(gradient, tokens, vocabulary, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
}

struct EmbedTokens : torch::autograd::Function<EmbedTokens> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& weight, const Tensor& tokens) {
    context->save_for_backward({tokens});
    context->saved_data["vocabulary"] = weight.size(0);
    return at::embedding(weight, tokens);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const Tensor tokens = context->get_saved_variables()[0];
    return {sum_by_token(gradients[0], tokens, context->saved_data["vocabulary"].toInt()), Tensor()};
  }
};

}  // namespace

Tensor embed_tokens(const Tensor& weight, const Tensor& tokens) { return EmbedTokens::apply(weight, tokens); }

}  // namespace strata
