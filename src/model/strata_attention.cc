#include "model/strata_attention.h"

#include "strata/hkt.h"
#include "strata/hsa_stream.h"
#include "torch/hsa_op.h"

namespace strata {
namespace {

using torch::Tensor;

void check_options(const StrataAttentionOptions& o) {
  TORCH_CHECK(o.positions() == "none" || o.positions() == "bias", "positions: expected none or bias, got \"",
              o.positions(), "\"");
  TORCH_CHECK(o.tables() >= 1 && o.places() >= 1, "tables, places: expected 1 or more, got ", o.tables(), " and ",
              o.places());
  TORCH_CHECK(o.branching() >= 2 && o.branching() <= kMaxBranching, "branching: expected 2 to ", kMaxBranching,
              ", got ", o.branching());
  TORCH_CHECK(o.near() >= 1 && o.near() <= (1 << 20), "near: expected 1 to 2^20 families, got ", o.near());
  TORCH_CHECK(
      !o.pyramid().psd(),
      "psd: expected false, because a tree ties scores that the symmetrised kernel is made of; use HktAttention");
  TORCH_CHECK(!o.pyramid().alibi() && o.pyramid().window_left() < 0 && o.pyramid().window_right() < 0,
              "alibi, window: expected none; the keys of a node share scores, and near is a window of exact ones");
  TORCH_CHECK(o.form() != StrataForm::kTree || o.pyramid().attention_dropout() == 0,
              "attention_dropout: expected 0 with trees, whose tokens share weights; use dropout on the output");
}

torch::ScalarType compute_type(const Tensor& x) {
  return x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

const char* name_of(StrataForm form) {
  return form == StrataForm::kTree ? "tree" : form == StrataForm::kStreaming ? "streaming" : "both sides";
}

}  // namespace

StrataAttentionImpl::StrataAttentionImpl(const StrataAttentionOptions& options_)
    : HktAttentionImpl(options_.pyramid()), strata_options(options_) {
  check_options(strata_options);
  reset();
}

void StrataAttentionImpl::reset() {
  const StrataAttentionOptions& o = strata_options;
  if (o.positions() != "bias" || sibling_bias_.defined()) return;
  const int64_t H = options.heads(), b = o.branching();
  const int64_t distances = hsa_stream_distances(static_cast<int>(o.near()), o.form() == StrataForm::kBothSides);
  sibling_bias_ = register_parameter("sibling_bias", o.form() == StrataForm::kTree
                                                         ? torch::zeros({H, o.tables(), o.places(), o.places()})
                                                         : torch::zeros({H, o.tables(), distances, b, b}));
}

std::shared_ptr<torch::nn::Module> StrataAttentionImpl::clone(const c10::optional<torch::Device>& device) const {
  torch::NoGradGuard no_grad;
  auto copy = std::make_shared<StrataAttentionImpl>(strata_options);
  const auto from = named_parameters();
  for (auto& item : copy->named_parameters()) {
    item.value().set_data(from[item.key()].clone());
    item.value().set_requires_grad(from[item.key()].requires_grad());
  }
  if (device.has_value()) copy->to(*device);
  copy->train(is_training());
  return copy;
}

void StrataAttentionImpl::pretty_print(std::ostream& stream) const {
  const StrataAttentionOptions& o = strata_options;
  stream << "strata::StrataAttention(model_size=" << options.model_size() << ", heads=" << options.heads()
         << ", levels=" << options.levels() << ", " << name_of(o.form());
  if (o.form() != StrataForm::kTree) stream << ", branching=" << o.branching() << ", near=" << o.near();
  stream << ", positions=" << o.positions() << ")";
}

void StrataAttentionImpl::check_streaming(const char* what) const {
  TORCH_CHECK(strata_options.form() == StrataForm::kStreaming, what,
              ": expected the streaming form; create the module with form(StrataForm::kStreaming)");
}

// Packed sequences have a pyramid, and positions, each.
HktAttentionImpl::Projected StrataAttentionImpl::project_sequences(const Tensor& x, const std::vector<Tensor>& trees) {
  const bool packed = x.size(0) == 1 && trees.size() > 1;
  if (!packed || (options.levels() == 1 && options.rotary() == 0 && !options.input_filter())) return project_all(x);
  std::vector<Projected> parts;
  int64_t first = 0;
  for (const Tensor& tree : trees) {
    const int64_t tokens = tree.numel() > 0 ? tree[0].item<int32_t>() : 0;
    TORCH_CHECK(tokens >= 0 && first + tokens <= x.size(1), "trees: cover more tokens than x has, ", x.size(1));
    parts.push_back(project_all(x.narrow(1, first, tokens)));
    first += tokens;
  }
  auto join = [&](auto part) {
    std::vector<Tensor> all;
    for (const Projected& p : parts) all.push_back(part(p));
    return torch::cat(all, 2);
  };
  Projected joined;
  for (int64_t l = 0; l < options.levels(); ++l) {
    joined.q.push_back(join([l](const Projected& p) { return p.q[l]; }));
    joined.k.push_back(join([l](const Projected& p) { return p.k[l]; }));
  }
  joined.v = join([](const Projected& p) { return p.v; });
  return joined;
}

Tensor StrataAttentionImpl::forward(const Tensor& x, const std::vector<Tensor>& trees,
                                    const c10::optional<Tensor>& weights, const c10::optional<Tensor>& cu_seqlens,
                                    int64_t max_seqlen) {
  const StrataAttentionOptions& o = strata_options;
  TORCH_CHECK(x.dim() == 3 && x.size(2) == options.model_size(), "x: expected shape (batch, tokens, ",
              options.model_size(), "), got ", x.sizes());
  const bool tree = o.form() == StrataForm::kTree;
  TORCH_CHECK(tree != trees.empty() || x.size(0) == 0,
              tree ? "trees: expected one per sequence, got none" : "trees: expected none but in the tree form");
  Tensor real = x;  // hidden tokens must reach neither the pyramid nor the gradients of the projections (0 * NaN)
  if (weights.has_value()) real = x.masked_fill(weights->eq(0).unsqueeze(-1), 0.0);
  TORCH_CHECK(!tree || !cu_seqlens.has_value(), "cu_seqlens: expected none with trees, which pack by themselves");
  const Projected p = cu_seqlens.has_value() ? project_all(real, cu_seqlens) : project_sequences(real, trees);
  const auto compute = compute_type(p.v);
  c10::optional<Tensor> positions, typed_weights;
  if (sibling_bias_.defined()) positions = sibling_bias_.to(compute);
  if (weights.has_value()) typed_weights = weights->to(compute);
  Tensor mixed;
  if (tree) {
    HsaOptions call;
    call.weights = typed_weights;
    call.positions = positions;
    call.level_weights = level_weights().to(compute);
    mixed = std::get<0>(hsa_attention(p.q, p.k, p.v, trees, call));
  } else {
    HsaStreamOptions call;
    call.weights = typed_weights;
    call.positions = positions;
    call.level_weights = level_weights().to(compute);
    call.branching = o.branching();
    call.near = o.near();
    call.both_sides = o.form() == StrataForm::kBothSides;
    call.dropout = is_training() ? options.attention_dropout() : 0.0;
    call.cu_seqlens = cu_seqlens;
    call.max_seqlen = max_seqlen;
    mixed = std::get<0>(hsa_stream_attention(p.q, p.k, p.v, call));
  }
  return out_(mixed.transpose(1, 2).reshape(x.sizes()));
}

}  // namespace strata
