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

void copy_weights(const std::map<std::string, torch::Tensor>& stored, const std::string& prefix,
                  const torch::OrderedDict<std::string, torch::Tensor>& into, const fs::path& path) {
  torch::NoGradGuard no_grad;
  for (const auto& item : into) {
    const auto found = stored.find(prefix + item.key());
    if (found == stored.end() || found->second.sizes() != item.value().sizes()) {
      throw output_error("{}: tensor {} is missing or has another shape; expected a checkpoint of this model",
                         path.string(), item.key());
    }
    item.value().copy_(found->second);
  }
}

void save_model(const fs::path& path, const SequenceModel& model, const ModelCard& card) {
  NamedTensors tensors;
  for (const auto& item : model->named_parameters()) tensors.emplace_back(item.key(), item.value());
  for (const auto& item : model->named_buffers()) tensors.emplace_back(item.key(), item.value());  // what is frozen
  save_tensors(path, tensors, {{kCardKey, card.to_json().dump()}});
}

fs::path model_file(const fs::path& given) {
  if (!fs::is_directory(given)) return given;
  fs::path path = given / "best.safetensors";
  if (fs::exists(path)) return path;
  throw output_error("{}: expected best.safetensors in this folder, found none; has the run been evaluated yet?",
                     given.string());
}

namespace {

// A header that describes a larger model than the file holds is refused before the model takes its memory.
void check_size(const ModelCard& card, const SafetensorsFile& file, const fs::path& path) {
  double stored = 0;
  for (const auto& [name, tensor] : file.tensors) stored += static_cast<double>(tensor.numel());
  const ModelConfig& c = card.config;
  const ModelShape& s = card.shape;
  auto product = [](auto... sizes) { return (1.0 * ... * static_cast<double>(sizes)); };
  const double embedding =
      s.frozen > 0 ? product(s.vocabulary + c.model_size, s.frozen) : product(s.vocabulary, c.model_size);
  const double needed = embedding + product(s.outputs, c.model_size) +
                        product(c.layers, c.is_modern() ? 3 : 2, c.ffn_width(), c.model_size) +
                        (c.positions == "learned" ? product(s.length, c.model_size) : 0.0);
  if (needed > stored)
    throw output_error(
        "{}: expected at least {:.0f} weights for the model that the header describes, got {:.0f}; the file is damaged",
        path.string(), needed, stored);
}

}  // namespace

LoadedModel load_model(const fs::path& given, bool check_digest) {
  const fs::path path = model_file(given);
  const SafetensorsFile file = load_tensors(path, check_digest);
  LoadedModel loaded;
  loaded.card = ModelCard::from_json(header_json(file, kCardKey, path), path.string());
  check_size(loaded.card, file, path);
  try {
    loaded.model = SequenceModel(loaded.card.config, loaded.card.shape);
  } catch (const c10::Error& error) {
    throw output_error("{}: the model header is damaged: {}", path.string(), error.what_without_backtrace());
  }
  const std::map<std::string, torch::Tensor> stored(file.tensors.begin(), file.tensors.end());
  copy_weights(stored, "", loaded.model->named_parameters(), path);
  copy_weights(stored, "", loaded.model->named_buffers(), path);
  loaded.model->eval();
  return loaded;
}

}  // namespace strata
