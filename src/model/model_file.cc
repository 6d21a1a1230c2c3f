#include "model/model_file.h"

#include "model/out_of_memory.h"
#include "util/error.h"
#include "util/json.h"

namespace strata {

void save_tensors(const fs::path& path, const NamedTensors& tensors, const Metadata& metadata) {
  try {
    save_safetensors(path.string(), tensors, metadata);
  } catch (const c10::Error& error) {
    throw_if_out_of_memory(error);
    throw output_error("{}", error.what_without_backtrace());
  }
}

SafetensorsFile load_tensors(const fs::path& path, bool check_digest) {
  if (!fs::exists(path)) throw output_error("{}: there is no such file", path.string());
  try {
    return load_safetensors(path.string(), check_digest ? DigestCheck::kIfStored : DigestCheck::kSkip);
  } catch (const c10::Error& error) {
    throw_if_out_of_memory(error);
    throw output_error("{}", error.what_without_backtrace());
  }
}

Json header_json(const SafetensorsFile& file, const char* key, const fs::path& path) {
  const auto found = file.metadata.find(key);
  const Json json = found == file.metadata.end() ? Json() : parse_json<Json>(found->second);
  if (!json.is_object()) {
    throw output_error("{}: expected {} in the header, found none; was this file written by strata train?",
                       path.string(), key);
  }
  return json;
}

void copy_weights(const std::map<std::string, torch::Tensor>& stored, const std::string& prefix, SequenceModel& model,
                  const fs::path& path) {
  torch::NoGradGuard no_grad;
  for (auto& item : model->named_parameters()) {
    const auto found = stored.find(prefix + item.key());
    if (found == stored.end() || found->second.sizes() != item.value().sizes()) {
      throw output_error("{}: tensor {} is missing or has another shape; expected a checkpoint of this model",
                         path.string(), item.key());
    }
    item.value().copy_(found->second);
  }
}

Json ModelCard::to_json() const {
  ModelCard copy = *this;
  OptionTable config_table, shape_table;
  declare(config_table, copy.config);
  declare(shape_table, copy.shape);
  Json json = {{"format", 1},
               {"task", task},
               {"tree", tree},
               {"labels", labels},
               {"config", config_table.record()},
               {"shape", shape_table.record()}};
  if (!words.empty()) json["words"] = words;
  if (!label_column.empty()) json[kColumnsKey] = {{"label", label_column}, {"text", text_column}};
  return json;
}

ModelCard ModelCard::from_json(const Json& json, const std::string& where) {
  ModelCard card;
  if (json.value("format", 0) != 1) {
    throw output_error("{}: expected format 1, got format {}; the file was written by another version of strata", where,
                       json.value("format", 0));
  }
  OptionTable config_table, shape_table;
  declare(config_table, card.config);
  declare(shape_table, card.shape);
  try {
    config_table.restore(json.at("config"), where);
    shape_table.restore(json.at("shape"), where);
    card.task = json.at("task");
    card.tree = json.at("tree");
    card.labels = json.at("labels").get<std::vector<std::string>>();
    if (json.contains(kColumnsKey)) {
      card.label_column = json[kColumnsKey].at("label");
      card.text_column = json[kColumnsKey].at("text");
    }
    if (json.contains("words")) card.words = json.at("words").get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception& error) {
    throw output_error("{}: the model header is damaged ({})", where, error.what());
  }
  return card;
}

void save_model(const fs::path& path, const SequenceModel& model, const ModelCard& card) {
  NamedTensors tensors;
  for (const auto& item : model->named_parameters()) tensors.emplace_back(item.key(), item.value());
  save_tensors(path, tensors, {{kCardKey, card.to_json().dump()}});
}

fs::path model_file(const fs::path& given) {
  if (!fs::is_directory(given)) return given;
  fs::path path = given / "best.safetensors";
  if (fs::exists(path)) return path;
  throw output_error("{}: expected best.safetensors in this folder, found none; has the run been evaluated yet?",
                     given.string());
}

LoadedModel load_model(const fs::path& given, bool check_digest) {
  const fs::path path = model_file(given);
  const SafetensorsFile file = load_tensors(path, check_digest);
  LoadedModel loaded;
  loaded.card = ModelCard::from_json(header_json(file, kCardKey, path), path.string());
  loaded.model = SequenceModel(loaded.card.config, loaded.card.shape);
  copy_weights({file.tensors.begin(), file.tensors.end()}, "", loaded.model, path);
  loaded.model->eval();
  return loaded;
}

}  // namespace strata
