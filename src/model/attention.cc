#include "model/attention.h"

#include <map>

#include "model/hkt_attention.h"
#include "model/hkt_cache.h"
#include "model/hsa_attention.h"
#include "strata/hkt.h"
#include "strata/hsa_stream.h"

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

double hkt_ratio(int64_t tokens, int64_t levels) {
  return static_cast<double>(hkt_cost(tokens, static_cast<int>(levels))) / static_cast<double>(hkt_cost(tokens, 1));
}

std::map<std::string, AttentionKind>& kinds() {
  static std::map<std::string, AttentionKind> all = {
      {"flat",
       {[](const auto& config, const auto& shape) { return make_hkt(config, shape, 1); },
        [](const auto&, const auto&) { return 1.0; }}},
      {"hkt",
       {[](const auto& config, const auto& shape) { return make_hkt(config, shape, config.levels); },
        [](const auto& config, const auto& shape) { return hkt_ratio(shape.length, config.levels); }}},
      {"hsa",
       {make_hsa,
        [](const auto& config, const auto& shape) {
          const auto tokens = static_cast<double>(shape.length);
          return static_cast<double>(hsa_stream_cost(shape.length, static_cast<int>(config.branching))) /
                 (tokens * (tokens + 1) / 2);
        },
        /*trees=*/true}}};
  return all;
}

}  // namespace

void register_attention(const std::string& name, AttentionKind kind) {
  if (kinds().emplace(name, std::move(kind)).second) attention_names().push_back(name);
}

const AttentionKind& find_attention(const std::string& name) {
  const auto found = kinds().find(name);
  TORCH_CHECK_VALUE(found != kinds().end(), "attention: expected one of ", attention_names(), ", got ", name);
  return found->second;
}

AttentionModule make_attention(const ModelConfig& config, const ModelShape& shape) {
  return find_attention(config.attention).make(config, shape);
}

bool wants_trees(const ModelConfig& config, const ModelShape& shape) {
  return find_attention(config.attention).trees && !shape.next_token;
}

}  // namespace strata
