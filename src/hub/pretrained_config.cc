#include "hub/pretrained_config.h"

#include <nlohmann/json.hpp>

#include "util/error.h"
#include "util/json.h"
#include "util/text.h"

namespace strata {

using Json = nlohmann::json;

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
  if (!(c.norm_epsilon >= 0 && c.norm_epsilon <= 1))
    throw data_error("{}: {}: expected a number from 0 to 1, got {}", where, epsilon, c.norm_epsilon);
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
