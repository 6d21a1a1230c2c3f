// Models from Hugging Face folders.
#include <map>
#include <set>

#include "hub/pretrained.h"
#include "model/out_of_memory.h"
#include "model/safetensors.h"
#include "util/error.h"
#include "util/file.h"

namespace strata {

using torch::Tensor;

// Tensors by name, with any prefix that the file may use.
class Pretrained::Reader {
 public:
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

  bool has(const std::string& name) const { return find(name) != tensors_.end(); }
  Tensor tensor(const std::string& name, std::vector<int64_t> shape) const {
    const auto found = find(name);
    if (found == tensors_.end()) throw data_error("{}: expected a tensor {}{}, found none", where_, prefix_, name);
    if (found->second.sizes() != c10::IntArrayRef(shape))
      throw data_error("{}: {}: expected the shape ({}), got ({})", where_, found->first, fmt::join(shape, ", "),
                       fmt::join(found->second.sizes().vec(), ", "));
    return found->second.to(torch::kFloat);
  }
  Linear linear(const std::string& name, int64_t out, int64_t in) const {
    if (!config_.is_causal()) return {tensor(name + ".weight", {out, in}), tensor(name + ".bias", {out})};
    return {tensor(name + ".weight", {in, out}).t(), tensor(name + ".bias", {out})};  // GPT-2 keeps (in, out)
  }
  Norm norm(const std::string& name) const {
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
};

Pretrained Pretrained::load(const std::filesystem::path& folder, bool check_digest) {
  const std::filesystem::path config = folder / "config.json";
  if (!std::filesystem::exists(config))
    throw data_error("{}: expected config.json in this folder, found none", folder.string());
  Pretrained model;
  model.config_ = PretrainedConfig::from_json(read_file(config), config.string());
  const PretrainedConfig& c = model.config_;
  const Reader reader(folder, c, check_digest ? DigestCheck::kIfStored : DigestCheck::kSkip);
  const int64_t H = c.hidden;
  const bool gpt2 = c.is_causal();
  model.words_ = reader.tensor(gpt2 ? "wte.weight" : "embeddings.word_embeddings.weight", {c.vocabulary, H});
  model.positions_ = reader.tensor(gpt2 ? "wpe.weight" : "embeddings.position_embeddings.weight", {c.positions, H});
  if (c.types > 0) model.types_ = reader.tensor("embeddings.token_type_embeddings.weight", {c.types, H});
  model.embedding_norm_ = reader.norm(gpt2 ? "ln_f" : "embeddings.LayerNorm");
  for (int64_t l = 0; l < c.layers; ++l) {
    Layer layer;
    if (gpt2) {
      const std::string name = fmt::format("h.{}.", l);
      const Linear all = reader.linear(name + "attn.c_attn", 3 * H, H);
      auto third = [&](int64_t i) { return Linear{all.weight.narrow(0, i * H, H), all.bias.narrow(0, i * H, H)}; };
      layer = {third(0),
               third(1),
               third(2),
               reader.linear(name + "attn.c_proj", H, H),
               reader.linear(name + "mlp.c_fc", c.inner, H),
               reader.linear(name + "mlp.c_proj", H, c.inner),
               reader.norm(name + "ln_1"),
               reader.norm(name + "ln_2")};
    } else {
      const std::string name = fmt::format("encoder.layer.{}.", l);
      layer = {
          reader.linear(name + "attention.self.query", H, H),     reader.linear(name + "attention.self.key", H, H),
          reader.linear(name + "attention.self.value", H, H),     reader.linear(name + "attention.output.dense", H, H),
          reader.linear(name + "intermediate.dense", c.inner, H), reader.linear(name + "output.dense", H, c.inner),
          reader.norm(name + "attention.output.LayerNorm"),       reader.norm(name + "output.LayerNorm")};
    }
    model.layers_.push_back(std::move(layer));
  }
  const auto classes = static_cast<int64_t>(c.labels.size());
  if (reader.has("pooler.dense.weight")) model.pooler_ = reader.linear("pooler.dense", H, H);
  if (reader.has("classifier.out_proj.weight")) {
    model.dense_ = reader.linear("classifier.dense", H, H);
    model.classes_ = reader.linear("classifier.out_proj", classes, H);
  } else if (reader.has("classifier.weight") && model.pooler_.weight.defined()) {
    model.classes_ = reader.linear("classifier", classes, H);
  }
  model.attention = softmax_attention(gpt2);
  return model;
}

Tokenizer tokenizer_of(const std::filesystem::path& folder, const PretrainedConfig& config) {
  Tokenizer tokenizer = Tokenizer::load(folder);
  if (tokenizer.size() > config.vocabulary)
    throw data_error("{}: the tokenizer has {} tokens and the model {}; expected files of one model", folder.string(),
                     tokenizer.size(), config.vocabulary);
  return tokenizer;
}

}  // namespace strata
