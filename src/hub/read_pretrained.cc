// Models from Hugging Face folders, and seeded ones of their shapes.
#include <ATen/CPUGeneratorImpl.h>

#include <map>
#include <optional>
#include <set>

#include "hub/pretrained.h"
#include "model/out_of_memory.h"
#include "model/safetensors.h"
#include "util/error.h"
#include "util/file.h"

namespace strata {

using torch::Tensor;

static constexpr const char* kEncoderWords = "embeddings.word_embeddings.weight";

// Tensors by name, with any prefix that the file may use; or, of a seeded model, random ones.
class Pretrained::Reader {
 public:
  Reader(const PretrainedConfig& config, uint64_t seed)
      : config_(config), where_("a seeded model"), random_(at::detail::createCPUGenerator(seed)) {}
  Reader(const std::filesystem::path& folder, const PretrainedConfig& config, DigestCheck check) : config_(config) {
    namespace fs = std::filesystem;
    where_ = folder.string();
    std::set<std::string> files;
    if (fs::exists(folder / "model.safetensors")) {
      files.insert("model.safetensors");
    } else if (const fs::path index = folder / "model.safetensors.index.json"; fs::exists(index)) {
      files = weight_files(read_file(index), index.string());
    } else {
      throw data_error("{}: expected model.safetensors or model.safetensors.index.json, found neither", where_);
    }
    for (const std::string& file : files) {
      try {
        for (auto& [name, tensor] : map_safetensors((folder / file).string(), check).tensors) tensors_[name] = tensor;
      } catch (const c10::Error& error) {
        throw_if_out_of_memory(error);
        throw data_error("{}", error.what_without_backtrace());
      }
    }
    for (const char* prefix : {"bert.", "roberta.", "transformer.", "model."}) {
      for (const auto& [name, tensor] : tensors_) {
        if (name.rfind(prefix, 0) == 0) prefix_ = prefix;
      }
    }
  }

  const std::string& where() const { return where_; }
  bool has(const std::string& name) const {
    return random_.has_value() ? name == "lm_head.weight" : find(name) != tensors_.end();
  }
  Tensor tensor(const std::string& name, std::vector<int64_t> shape) const {
    if (random_.has_value()) return 0.02 * torch::randn(shape, *random_);
    const auto found = find(name);
    if (found == tensors_.end()) throw data_error("{}: expected a tensor {}{}, found none", where_, prefix_, name);
    if (found->second.sizes() != c10::IntArrayRef(shape))
      throw data_error("{}: {}: expected the shape ({}), got ({})", where_, found->first, fmt::join(shape, ", "),
                       fmt::join(found->second.sizes().vec(), ", "));
    return found->second.to(torch::kFloat);
  }
  Linear linear(const std::string& name, int64_t out, int64_t in, bool bias = true) const {
    const bool turned = config_.family == PretrainedConfig::Family::kGpt2;  // it keeps (in, out)
    const Tensor weight = turned ? tensor(name + ".weight", {in, out}).t() : tensor(name + ".weight", {out, in});
    return {weight, bias ? tensor(name + ".bias", {out}) : Tensor()};
  }
  Norm norm(const std::string& name) const {
    if (random_.has_value())
      return {torch::ones({config_.hidden}), config_.is_modern() ? Tensor() : torch::zeros({config_.hidden})};
    if (config_.is_modern()) return {tensor(name + ".weight", {config_.hidden}), {}};
    const bool old = !has(name + ".weight") && has(name + ".gamma");
    return {tensor(name + (old ? ".gamma" : ".weight"), {config_.hidden}),
            tensor(name + (old ? ".beta" : ".bias"), {config_.hidden})};
  }

 private:
  std::map<std::string, Tensor>::const_iterator find(const std::string& name) const {
    const auto found = tensors_.find(prefix_ + name);
    return found == tensors_.end() ? tensors_.find(name) : found;
  }
  const PretrainedConfig& config_;
  std::string where_, prefix_;
  std::map<std::string, Tensor> tensors_;
  std::optional<at::Generator> random_;
};

void Pretrained::read_bert(const Reader& reader) {
  const PretrainedConfig& c = config_;
  const int64_t H = c.hidden;
  words_ = reader.tensor(kEncoderWords, {c.vocabulary, H});
  positions_ = reader.tensor("embeddings.position_embeddings.weight", {c.positions, H});
  if (c.types > 0) types_ = reader.tensor("embeddings.token_type_embeddings.weight", {c.types, H});
  embedding_norm_ = reader.norm("embeddings.LayerNorm");
  for (int64_t l = 0; l < c.layers; ++l) {
    const std::string name = fmt::format("encoder.layer.{}.", l);
    layers_.push_back({reader.linear(name + "attention.self.query", H, H),
                       reader.linear(name + "attention.self.key", H, H),
                       reader.linear(name + "attention.self.value", H, H),
                       reader.linear(name + "attention.output.dense", H, H),
                       {},
                       reader.linear(name + "intermediate.dense", c.inner, H),
                       reader.linear(name + "output.dense", H, c.inner),
                       reader.norm(name + "attention.output.LayerNorm"),
                       reader.norm(name + "output.LayerNorm")});
  }
  const auto classes = static_cast<int64_t>(c.labels.size());
  if (reader.has("pooler.dense.weight")) pooler_ = reader.linear("pooler.dense", H, H);
  if (reader.has("classifier.out_proj.weight")) {
    dense_ = reader.linear("classifier.dense", H, H);
    classes_ = reader.linear("classifier.out_proj", classes, H);
  } else if (reader.has("classifier.weight") && pooler_.weight.defined()) {
    classes_ = reader.linear("classifier", classes, H);
  }
}

void Pretrained::read_gpt2(const Reader& reader) {
  const PretrainedConfig& c = config_;
  const int64_t H = c.hidden;
  words_ = reader.tensor("wte.weight", {c.vocabulary, H});
  positions_ = reader.tensor("wpe.weight", {c.positions, H});
  embedding_norm_ = reader.norm("ln_f");
  for (int64_t l = 0; l < c.layers; ++l) {
    const std::string name = fmt::format("h.{}.", l);
    const Linear all = reader.linear(name + "attn.c_attn", 3 * H, H);
    auto third = [&](int64_t i) { return Linear{all.weight.narrow(0, i * H, H), all.bias.narrow(0, i * H, H)}; };
    layers_.push_back({third(0),
                       third(1),
                       third(2),
                       reader.linear(name + "attn.c_proj", H, H),
                       {},
                       reader.linear(name + "mlp.c_fc", c.inner, H),
                       reader.linear(name + "mlp.c_proj", H, c.inner),
                       reader.norm(name + "ln_1"),
                       reader.norm(name + "ln_2")});
  }
}

void Pretrained::read_modern(const Reader& reader) {
  const PretrainedConfig& c = config_;
  const int64_t H = c.hidden, q = c.heads * c.head_size, k = c.key_heads * c.head_size;
  words_ = reader.tensor("embed_tokens.weight", {c.vocabulary, H});
  embedding_norm_ = reader.norm("norm");
  for (int64_t l = 0; l < c.layers; ++l) {
    const std::string name = fmt::format("layers.{}.", l), attention = name + "self_attn.", ffn = name + "mlp.";
    layers_.push_back({reader.linear(attention + "q_proj", q, H, c.query_bias),
                       reader.linear(attention + "k_proj", k, H, c.query_bias),
                       reader.linear(attention + "v_proj", k, H, c.query_bias),
                       reader.linear(attention + "o_proj", H, q, c.out_bias),
                       reader.linear(ffn + "gate_proj", c.inner, H, c.ffn_bias),
                       reader.linear(ffn + "up_proj", c.inner, H, c.ffn_bias),
                       reader.linear(ffn + "down_proj", H, c.inner, c.ffn_bias), reader.norm(name + "input_layernorm"),
                       reader.norm(name + "post_attention_layernorm")});
  }
  if (!c.tied && !reader.has("lm_head.weight"))
    throw data_error("{}: expected a tensor lm_head.weight, or tie_word_embeddings in config.json, found neither",
                     reader.where());
  if (!c.tied) head_ = reader.tensor("lm_head.weight", {c.vocabulary, H});
  frequencies_ = torch::tensor(c.rotary.frequencies(c.head_size), torch::kDouble);
}

PretrainedConfig read_pretrained_config(const std::filesystem::path& folder) {
  const std::filesystem::path config = folder / "config.json";
  if (!std::filesystem::exists(config))
    throw data_error("{}: expected config.json in this folder, found none", folder.string());
  return PretrainedConfig::from_json(read_file(config), config.string());
}

Tensor Pretrained::load_words(const std::filesystem::path& folder, const PretrainedConfig& config) {
  return Reader(folder, config, DigestCheck::kIfStored).tensor(kEncoderWords, {config.vocabulary, config.hidden});
}

Pretrained Pretrained::load(const std::filesystem::path& folder, bool check_digest) {
  Pretrained model;
  model.config_ = read_pretrained_config(folder);
  PretrainedConfig& c = model.config_;
  // What generation_config.json says comes first, as in transformers.
  if (const auto generation = folder / "generation_config.json"; c.is_causal() && std::filesystem::exists(generation)) {
    const std::vector<int64_t> ends = end_tokens(read_file(generation), generation.string());
    if (!ends.empty()) c.ends = ends;
  }
  model.read_all(Reader(folder, c, check_digest ? DigestCheck::kIfStored : DigestCheck::kSkip));
  return model;
}

Pretrained Pretrained::seeded(const PretrainedConfig& config, uint64_t seed) {
  Pretrained model;
  model.config_ = config;
  model.read_all(Reader(model.config_, seed));
  return model;
}

void Pretrained::read_all(const Reader& reader) {
  if (config_.is_modern()) {
    read_modern(reader);
  } else if (config_.family == PretrainedConfig::Family::kGpt2) {
    read_gpt2(reader);
  } else {
    read_bert(reader);
  }
  attention = softmax_attention(config_.is_causal());
}

Tokenizer tokenizer_of(const std::filesystem::path& folder, const PretrainedConfig& config) {
  if (config.is_modern() && !std::filesystem::exists(folder / "tokenizer.json"))
    throw data_error("{}: expected tokenizer.json, which says how a model of this family splits texts, found none",
                     folder.string());
  Tokenizer tokenizer = Tokenizer::load(folder);
  if (tokenizer.size() > config.vocabulary)
    throw data_error("{}: the tokenizer has {} tokens and the model {}; expected files of one model", folder.string(),
                     tokenizer.size(), config.vocabulary);
  return tokenizer;
}

}  // namespace strata
