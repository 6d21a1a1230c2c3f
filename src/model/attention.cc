#include "model/attention.h"

#include "model/hkt_attention.h"
#include "model/hkt_cache.h"
#include "model/hsa_attention.h"

namespace strata {
namespace {

// A module with its cache; state() of both kinds of cache names the tensors.
template <class Module, class Cache>
class CachedStream : public AttentionStream {
 public:
  CachedStream(Module module, Cache cache) : module_(std::move(module)), cache_(std::move(cache)) {}
  torch::Tensor step(const torch::Tensor& x) override { return module_->step(x, cache_); }
  int64_t bytes() const override {
    int64_t bytes = 0;
    for (const auto& [name, tensor] : cache_.state()) bytes += static_cast<int64_t>(tensor.nbytes());
    return bytes;
  }

 private:
  Module module_;
  Cache cache_;
};

AttentionModule make_hkt(const ModelConfig& c, const ModelShape& shape, int64_t levels) {
  HktAttention module(HktAttentionOptions(c.model_size, c.heads)
                          .levels(levels)
                          .taps(c.taps)
                          .dense_filters(c.filters == "dense")
                          .input_filter(c.input_filter)
                          .per_level_projections(c.projections == "per-level" && levels > 1)
                          .psd(c.psd)
                          .causal(shape.next_token));
  return {
      module.ptr(),
      [module](const torch::Tensor& x, const ModelInput& input) mutable { return module->forward(x, input.lengths); },
      [module]() mutable -> std::unique_ptr<AttentionStream> {
        HktCache empty = module->prefill(torch::zeros({1, 0, module->options.model_size()})).second;
        return std::make_unique<CachedStream<HktAttention, HktCache>>(module, std::move(empty));
      }};
}

AttentionModule make_hsa(const ModelConfig& c, const ModelShape& shape) {
  HsaAttentionOptions options(c.model_size, c.heads);
  options.normalize(c.normalize).positions(c.sibling_positions);
  if (shape.next_token) {  // only the streaming form is causal
    constexpr int64_t kHeights = 8;
    options.streaming(true).branching(c.branching).tables(kHeights).places(c.branching);
  } else {
    options.tables(shape.tables).places(shape.places);
  }
  HsaAttention module(options);
  return {module.ptr(),
          [module](const torch::Tensor& x, const ModelInput& input) mutable { return module->forward(x, input.trees); },
          [module]() -> std::unique_ptr<AttentionStream> {
            return std::make_unique<CachedStream<HsaAttention, HsaStreamCache>>(module, module->start_stream(1));
          }};
}

}  // namespace

AttentionModule make_attention(const ModelConfig& config, const ModelShape& shape) {
  if (config.attention == "flat") return make_hkt(config, shape, 1);
  if (config.attention == "hkt") return make_hkt(config, shape, config.levels);
  TORCH_CHECK_VALUE(config.attention == "hsa", "attention: expected flat, hkt or hsa, got ", config.attention);
  return make_hsa(config, shape);
}

bool wants_trees(const ModelConfig& config, const ModelShape& shape) {
  return config.attention == "hsa" && !shape.next_token;
}

}  // namespace strata
