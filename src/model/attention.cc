#include "model/attention.h"

#include <algorithm>
#include <map>
#include <type_traits>

#include "base/stream_nodes.h"
#include "model/hkt_attention.h"
#include "model/hkt_cache.h"
#include "model/hsa_attention.h"
#include "model/strata_attention.h"
#include "strata/hkt.h"
#include "strata/hsa_stream.h"

namespace strata {
namespace {

constexpr int64_t kFirstHeights = 1;  // a cache of nodes takes memory for more as the text grows

// A module with its cache; state() of every kind of cache names the tensors.
template <class Module, class Cache>
class CachedStream : public AttentionStream {
 public:
  CachedStream(Module module, Cache cache) : module_(std::move(module)), cache_(std::move(cache)) {}
  torch::Tensor step(const torch::Tensor& x) override { return module_->step(x, cache_); }
  torch::Tensor prefill(const torch::Tensor& x) override {
    torch::Tensor y;
    if constexpr (std::is_same_v<Cache, HktCache>) {
      std::tie(y, cache_) = module_->prefill(x);
    } else {
      std::tie(y, cache_) = module_->prefill(x, c10::nullopt, kFirstHeights);
    }
    return y;
  }
  int64_t bytes() const override {
    int64_t bytes = 0;
    for (const auto& [name, tensor] : cache_.state()) bytes += static_cast<int64_t>(tensor.nbytes());
    return bytes;
  }

 private:
  Module module_;
  Cache cache_;
};

// Channels of each head that are rotated: all, or one less where that is odd.
int64_t rotary_size(const ModelConfig& c) {
  return c.positions == "rotary" && c.heads > 0 ? c.model_size / c.heads / 2 * 2 : 0;
}

// Of --level-weights, for a module of this many levels; none: learned.
std::vector<double> fixed_weights(const ModelConfig& c, int64_t levels) {
  if (c.level_weights == "learned" || levels == 1) return {};
  const auto count = static_cast<size_t>(levels);
  if (c.level_weights == "uniform") return std::vector<double>(count, 1.0 / static_cast<double>(levels));
  const auto only = static_cast<size_t>(c.level_weights.back() - '0');  // level-2
  TORCH_CHECK_VALUE(only < count, "level_weights: expected a level below ", levels, ", because --levels is ", levels,
                    ", got ", c.level_weights);
  std::vector<double> weights(count, 0.0);
  weights[only] = 1.0;
  return weights;
}

// A token sees this many on each side; -1: all.
int64_t window_of(const ModelConfig& c) { return c.window == 0 ? -1 : c.window; }

void refuse_window(const ModelConfig& c) {
  TORCH_CHECK_VALUE(c.window == 0, "window: expected 0 for ", c.attention,
                    ", whose tree says who attends to whom, got ", c.window,
                    "; use --attention flat or hkt, or --near of strata without a tree");
}

HktAttentionOptions pyramid_options(const ModelConfig& c, int64_t levels) {
  TORCH_CHECK_VALUE(
      !c.psd || c.positions != "rotary",
      "psd: expected positions that are not rotary, because the kernel of rotated queries and keys is not "
      "positive semi-definite; use --positions learned");
  return HktAttentionOptions(c.model_size, c.heads)
      .key_heads(c.key_heads)
      .levels(levels)
      .taps(c.taps)
      .dense_filters(c.filters == "dense")
      .input_filter(c.input_filter)
      .fixed_level_weights(fixed_weights(c, levels))
      .per_level_projections(c.projections == "per-level" && levels > 1)
      .rotary(rotary_size(c));
}

// Of tensors that lie where the parameters of a module do.
torch::TensorOptions parameters_like(const torch::nn::Module& module) {
  return module.parameters()[0].options().requires_grad(false);
}

AttentionModule make_hkt(const ModelConfig& c, const ModelShape& shape, int64_t levels) {
  HktAttention module(pyramid_options(c, levels)
                          .psd(c.psd)
                          .causal(shape.next_token)
                          .window_left(window_of(c))
                          .window_right(shape.next_token ? -1 : window_of(c)));
  return {
      module.ptr(),
      [module](const torch::Tensor& x, const ModelInput& input) mutable { return module->forward(x, input.lengths); },
      [module]() mutable -> std::unique_ptr<AttentionStream> {
        HktCache empty =
            module->prefill(torch::zeros({1, 0, module->options.model_size()}, parameters_like(*module))).second;
        return std::make_unique<CachedStream<HktAttention, HktCache>>(module, std::move(empty));
      }};
}

constexpr int64_t kHeights = 8;  // that have position terms in the forms without a tree of the data

// (B, T): 1 for real tokens, 0 for padding.
torch::Tensor real_tokens(const torch::Tensor& x, const torch::Tensor& lengths) {
  const torch::Tensor place = torch::arange(x.size(1), lengths.options());
  return (place.unsqueeze(0) < lengths.unsqueeze(1)).to(torch::kFloat);
}

AttentionModule make_strata(const ModelConfig& c, const ModelShape& shape) {
  refuse_window(c);
  TORCH_CHECK_VALUE(c.sibling_positions == "bias" || c.sibling_positions == "none",
                    "sibling_positions: expected bias or none for strata, got ", c.sibling_positions);
  TORCH_CHECK_VALUE(!c.psd, "psd: expected false for strata, because a tree ties the scores; use --attention hkt");
  TORCH_CHECK_VALUE(!c.normalize, "normalize: expected false for strata; use --attention hsa");
  const StrataForm form = shape.next_token   ? StrataForm::kStreaming
                          : c.tree == "none" ? StrataForm::kBothSides
                                             : StrataForm::kTree;
  StrataAttentionOptions options(c.model_size, c.heads);
  options.pyramid(pyramid_options(c, c.levels)).form(form).positions(c.sibling_positions).near(c.near);
  if (form == StrataForm::kTree) {
    options.tables(shape.tables).places(shape.places);
  } else {
    options.tables(kHeights).branching(c.branching);
  }
  StrataAttention module(options);
  return {module.ptr(),
          [module, form](const torch::Tensor& x, const ModelInput& input) mutable {
            if (form == StrataForm::kBothSides) return module->forward(x, {}, real_tokens(x, input.lengths));
            return module->forward(x, input.trees);
          },
          [module]() mutable -> std::unique_ptr<AttentionStream> {
            return std::make_unique<CachedStream<StrataAttention, StrataCache>>(module,
                                                                                module->start_stream(1, kFirstHeights));
          }};
}

// Score products of the forms without a tree of the data over flat attention's. A row of level l serves 2^l queries
// and, among leaves, 2^l keys.
double stream_ratio(const ModelConfig& c, const ModelShape& shape, int64_t levels, int64_t near) {
  const int64_t T = shape.length;
  const bool both_sides = !shape.next_token;
  const StreamProducts one = stream_products(T, c.branching, near, both_sides);
  double products = 0;
  for (int64_t l = 0; l < levels; ++l) {
    const auto rows = static_cast<double>(int64_t{1} << l);
    products += static_cast<double>(one.leaves) / (rows * rows) + static_cast<double>(one.nodes) / rows;
  }
  const auto tokens = static_cast<double>(T);
  return products / (both_sides ? tokens * tokens : tokens * (tokens + 1) / 2);
}

AttentionModule make_hsa(const ModelConfig& c, const ModelShape& shape) {
  refuse_window(c);
  HsaAttentionOptions options(c.model_size, c.heads);
  TORCH_CHECK_VALUE(shape.next_token || c.tree != "none",
                    "tree: expected a tree for hsa, got none; choose one, or --attention strata, which needs none");
  options.key_heads(c.key_heads).normalize(c.normalize).positions(c.sibling_positions).rotary(rotary_size(c));
  if (shape.next_token) {  // only the streaming form is causal
    options.streaming(true).branching(c.branching).tables(kHeights).places(c.branching);
  } else {
    options.tables(shape.tables).places(shape.places);
  }
  HsaAttention module(options);
  return {module.ptr(),
          [module](const torch::Tensor& x, const ModelInput& input) mutable { return module->forward(x, input.trees); },
          [module]() mutable -> std::unique_ptr<AttentionStream> {
            return std::make_unique<CachedStream<HsaAttention, HsaStreamCache>>(module,
                                                                                module->start_stream(1, kFirstHeights));
          }};
}

// The pairs of tokens that a window leaves, over all pairs.
double window_ratio(const ModelConfig& c, const ModelShape& shape) {
  const int64_t T = shape.length, w = std::min(c.window, T - 1);
  if (c.window == 0 || T <= 1) return 1.0;
  // Of T rows, w see fewer than w tokens before them: 0 .. w - 1.
  const auto before = static_cast<double>(T * w - w * (w + 1) / 2), tokens = static_cast<double>(T);
  return shape.next_token ? (before + tokens) / (tokens * (tokens + 1) / 2) : (2 * before + tokens) / (tokens * tokens);
}

double hkt_ratio(const ModelConfig& c, const ModelShape& shape, int64_t levels) {
  const auto levels_ratio = static_cast<double>(hkt_cost(shape.length, static_cast<int>(levels))) /
                            static_cast<double>(hkt_cost(shape.length, 1));
  return levels_ratio * window_ratio(c, shape);
}

std::map<std::string, AttentionKind>& kinds() {
  static std::map<std::string, AttentionKind> all = {
      {"flat",
       {[](const auto& config, const auto& shape) { return make_hkt(config, shape, 1); },
        [](const auto& config, const auto& shape) { return hkt_ratio(config, shape, 1); }}},
      {"hkt",
       {[](const auto& config, const auto& shape) { return make_hkt(config, shape, config.levels); },
        [](const auto& config, const auto& shape) { return hkt_ratio(config, shape, config.levels); }}},
      {"hsa",
       {make_hsa, [](const auto& config, const auto& shape) { return stream_ratio(config, shape, 1, 1); },
        /*trees=*/true}},
      {"strata",
       {make_strata,
        [](const auto& config, const auto& shape) { return stream_ratio(config, shape, config.levels, config.near); },
        /*trees=*/true}}};
  return all;
}

}  // namespace

torch::Tensor AttentionStream::prefill(const torch::Tensor& x) {
  std::vector<torch::Tensor> rows;
  for (int64_t t = 0; t < x.size(1); ++t) rows.push_back(step(x.select(1, t)));
  return rows.empty() ? x : torch::stack(rows, 1);
}

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
  return find_attention(config.attention).trees && !shape.next_token && config.tree != "none";
}

}  // namespace strata
