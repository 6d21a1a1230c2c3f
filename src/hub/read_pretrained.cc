// config.json and the weights of Hugging Face folders.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "hub/pretrained.h"
#include "model/out_of_memory.h"
#include "model/safetensors.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"
#include "util/text.h"

namespace strata {

using Json = nlohmann::json;
using torch::Tensor;

PretrainedConfig PretrainedConfig::from_json(const std::string& text, const std::string& where) {
  const Json json = parse_json<Json>(text);
  if (!json.is_object()) throw data_error("{}: expected a JSON object, got {}", where, json_kind(json, text));
  const std::string type = json.contains("model_type") && json["model_type"].is_string() ? json["model_type"] : "";
  PretrainedConfig c;
  if (type == "bert") {
    c.family = Family::kBert;
  } else if (type == "roberta" || type == "xlm-roberta") {
    c.family = Family::kRoberta;
  } else if (type == "gpt2") {
    c.family = Family::kGpt2;
  } else {
    throw data_error("{}: expected a model_type of bert, roberta or gpt2, got \"{}\"", where, shown(type));
  }
  auto number = [&](const char* key, int64_t otherwise, int64_t most = int64_t{1} << 24) {
    if (!json.contains(key) || json[key].is_null()) {
      if (otherwise >= 0) return otherwise;
      throw data_error("{}: expected a number {}, found none", where, key);
    }
    if (!json[key].is_number_unsigned() || json[key].get<uint64_t>() > static_cast<uint64_t>(most))
      throw data_error("{}: {}: expected a whole number up to {}, got {}", where, key, most, shown(json[key].dump()));
    return json[key].get<int64_t>();
  };
  auto word = [&](const char* key, const std::string& otherwise) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : otherwise;
  };
  const bool gpt2 = c.is_causal();
  c.layers = number(gpt2 ? "n_layer" : "num_hidden_layers", -1, 1000);
  c.hidden = number(gpt2 ? "n_embd" : "hidden_size", -1);
  c.heads = number(gpt2 ? "n_head" : "num_attention_heads", -1);
  c.inner = number(gpt2 ? "n_inner" : "intermediate_size", gpt2 ? 4 * c.hidden : -1);
  c.vocabulary = number("vocab_size", -1);
  c.positions = number(gpt2 ? "n_positions" : "max_position_embeddings", -1);
  c.types = gpt2 ? 0 : number("type_vocab_size", 2);
  if (c.family == Family::kRoberta) c.first_position = number("pad_token_id", 1) + 1;
  const char* const epsilon = gpt2 ? "layer_norm_epsilon" : "layer_norm_eps";
  c.norm_epsilon = json.contains(epsilon) && json[epsilon].is_number() ? json[epsilon].get<double>()
                   : gpt2                                              ? 1e-5
                                                                       : 1e-12;
  c.activation = word(gpt2 ? "activation_function" : "hidden_act", gpt2 ? "gelu_new" : "gelu");
  static const std::set<std::string> known = {"gelu", "gelu_new", "gelu_pytorch_tanh", "relu"};
  if (known.count(c.activation) == 0)
    throw data_error("{}: expected an activation of gelu, gelu_new, gelu_pytorch_tanh or relu, got {}", where,
                     shown(c.activation));
  if (const std::string kind = word("position_embedding_type", "absolute"); kind != "absolute")
    throw data_error("{}: expected absolute positions, got {}", where, shown(kind));
  if (c.heads < 1 || c.hidden < 1 || c.hidden % c.heads != 0)
    throw data_error("{}: expected a hidden size that is a multiple of the heads, got {} and {}", where, c.hidden,
                     c.heads);
  if (c.longest() < 1)
    throw data_error("{}: expected room for at least one token, got {} positions", where, c.positions);
  if (json.contains("id2label") && json["id2label"].is_object()) {
    for (size_t id = 0; id < json["id2label"].size(); ++id) {
      const std::string key = std::to_string(id);
      const Json& names = json["id2label"];
      c.labels.push_back(names.contains(key) && names[key].is_string() ? names[key].get<std::string>() : key);
    }
  } else {  // transformers omits its default names; its default number of classes is two
    for (int64_t id = 0; id < number("num_labels", 2, 10000); ++id) c.labels.push_back(fmt::format("LABEL_{}", id));
  }
  return c;
}

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
      const Json json = parse_json<Json>(read_file(index));
      if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
        throw data_error("{}: expected a weight_map", index.string());
      for (const auto& [name, file] : json["weight_map"].items()) {
        if (!file.is_string() || fs::path(file.get<std::string>()).filename() != file.get<std::string>())
          throw data_error("{}: expected the file of {} in the same folder, got {}", index.string(), shown(name),
                           shown(file.dump()));
        files.insert(file.get<std::string>());
      }
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
