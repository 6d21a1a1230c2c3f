#include "hub/pretrained_config.h"

#include "hub/config_reader.h"
#include "hub/modern_config.h"

namespace strata {
namespace {

using Json = nlohmann::json;
using Family = PretrainedConfig::Family;

Family family_of(const ConfigReader& json) {
  const std::string type = json.word("model_type", "");
  if (type == "bert") return Family::kBert;
  if (type == "roberta" || type == "xlm-roberta") return Family::kRoberta;
  if (type == "gpt2") return Family::kGpt2;
  if (type == "llama") return Family::kLlama;
  if (type == "qwen2") return Family::kQwen2;
  throw data_error("{}: expected a model_type of bert, roberta, gpt2, llama or qwen2, got \"{}\"", json.where(),
                   shown(type));
}

// What BERT, RoBERTa and GPT-2 have, and Llama and Qwen2 have not.
void read_classic_config(const ConfigReader& json, PretrainedConfig& c) {
  const bool gpt2 = c.family == Family::kGpt2;
  c.types = gpt2 ? 0 : json.number("type_vocab_size", 2);
  if (c.family == Family::kRoberta) c.first_position = json.number("pad_token_id", 1) + 1;
  c.norm_epsilon = json.real(gpt2 ? "layer_norm_epsilon" : "layer_norm_eps", gpt2 ? 1e-5 : 1e-12, 0, 1);
  c.activation = json.word(gpt2 ? "activation_function" : "hidden_act", gpt2 ? "gelu_new" : "gelu");
  static const std::set<std::string> known = {"gelu", "gelu_new", "gelu_pytorch_tanh", "relu"};
  if (known.count(c.activation) == 0)
    throw data_error("{}: expected an activation of gelu, gelu_new, gelu_pytorch_tanh or relu, got {}", json.where(),
                     shown(c.activation));
  if (const std::string kind = json.word("position_embedding_type", "absolute"); kind != "absolute")
    throw data_error("{}: expected absolute positions, got {}", json.where(), shown(kind));
  if (c.heads < 1 || c.hidden < 1 || c.hidden % c.heads != 0)
    throw data_error("{}: expected a hidden size that is a multiple of the heads, got {} and {}", json.where(),
                     c.hidden, c.heads);
  c.key_heads = c.heads;
  c.head_size = c.hidden / c.heads;
  c.tied = gpt2;
}

std::vector<std::string> read_labels(const ConfigReader& reader) {
  std::vector<std::string> labels;
  const Json& json = reader.json();
  if (json.contains("id2label") && json["id2label"].is_object()) {
    const Json& names = json["id2label"];
    for (size_t id = 0; id < names.size(); ++id) {
      const std::string key = std::to_string(id);
      labels.push_back(names.contains(key) && names[key].is_string() ? names[key].get<std::string>() : key);
    }
  } else {  // transformers omits its default names; its default number of classes is two
    for (int64_t id = 0; id < reader.number("num_labels", 2, 10000); ++id)
      labels.push_back(fmt::format("LABEL_{}", id));
  }
  return labels;
}

std::vector<int64_t> read_ends(const ConfigReader& reader) {
  constexpr const char* kKey = "eos_token_id";
  if (!reader.has(kKey)) return {};
  const Json& json = reader.json()[kKey];
  std::vector<int64_t> ends;
  for (const Json& id : json.is_array() ? json : Json::array({json})) {
    constexpr uint64_t kMost = 1 << 24;
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMost)
      throw data_error("{}: {}: expected the id of a token, or several, got {}", reader.where(), kKey,
                       shown(json.dump()));
    ends.push_back(id.get<int64_t>());
  }
  return ends;
}

}  // namespace

PretrainedConfig PretrainedConfig::from_json(const std::string& text, const std::string& where) {
  const ConfigReader json(text, where);
  PretrainedConfig c;
  c.family = family_of(json);
  const bool gpt2 = c.family == Family::kGpt2;
  c.layers = json.number(gpt2 ? "n_layer" : "num_hidden_layers", -1, 1000);
  c.hidden = json.number(gpt2 ? "n_embd" : "hidden_size", -1);
  c.heads = json.number(gpt2 ? "n_head" : "num_attention_heads", -1);
  c.inner = json.number(gpt2 ? "n_inner" : "intermediate_size", gpt2 ? 4 * c.hidden : -1);
  c.vocabulary = json.number("vocab_size", -1);
  c.positions = json.number(gpt2 ? "n_positions" : "max_position_embeddings", -1);
  if (c.is_modern()) {
    read_modern_config(json, c);
  } else {
    read_classic_config(json, c);
  }
  if (c.longest() < 1)
    throw data_error("{}: expected room for at least one token, got {} positions", where, c.positions);
  if (c.is_causal()) {
    c.ends = read_ends(json);
    if (json.has("bos_token_id")) c.begin = json.number("bos_token_id", -1);
  } else {
    c.labels = read_labels(json);
  }
  return c;
}

std::vector<int64_t> end_tokens(const std::string& text, const std::string& where) {
  return read_ends(ConfigReader(text, where));
}

std::set<std::string> weight_files(const std::string& index, const std::string& where) {
  const Json json = parse_json<Json>(index);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    throw data_error("{}: expected a weight_map", where);
  std::set<std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string("/\0", 2)) != std::string::npos)
      throw data_error("{}: expected the file of {} in the same folder, got {}", where, shown(tensor),
                       shown(file.dump()));
    files.insert(name);
  }
  return files;
}

}  // namespace strata
