// Pretrained transformers against the reference implementation, and damaged folders.
#include "hub/pretrained.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "data/support.h"
#include "model/safetensors.h"
#include "util/error.h"
#include "util/file.h"

namespace strata {
namespace {

using Json = nlohmann::json;
using torch::Tensor;

fs::path folder_of(const std::string& name) { return fs::path(STRATA_TEST_DATA) / name; }

Tensor tensor_of(const Json& numbers) { return torch::tensor(numbers.get<std::vector<double>>(), torch::kFloat); }

struct Expected {
  explicit Expected(const std::string& name) : json(Json::parse(read_file(folder_of(name) / "expected.json"))) {
    std::vector<int64_t> all;
    for (const Json& row : json.at("ids"))
      for (const Json& id : row) all.push_back(id);
    lengths = torch::tensor(json.at("lengths").get<std::vector<int64_t>>());
    ids = torch::tensor(all).view({lengths.size(0), -1});
    real = torch::arange(ids.size(1)).unsqueeze(0) < lengths.unsqueeze(1);
  }
  // The largest difference over real tokens.
  double distance(const Tensor& got, const Json& want) const {
    const Tensor difference = (got - tensor_of(want).view(got.sizes())).abs().flatten(2).amax(-1);
    return difference.masked_select(real).max().item<double>();
  }
  Json json;
  Tensor ids, lengths, real;
};

class PretrainedFamily : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, PretrainedFamily, testing::Values("bert", "roberta", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(PretrainedFamily, HiddenStatesAndLogitsAreTheReferences) {
  const Expected expected(GetParam());
  const Pretrained model = Pretrained::load(folder_of(GetParam()));
  const std::vector<Tensor> states = model.hidden_states(expected.ids, expected.lengths);
  const Json& hidden = expected.json.at("hidden");
  ASSERT_EQ(states.size(), hidden.size());
  for (size_t l = 0; l < states.size(); ++l) EXPECT_LT(expected.distance(states[l], hidden[l]), 1e-5) << "layer " << l;
  const Json& want = expected.json.at("logits");
  if (model.config().is_causal()) {
    EXPECT_LT(expected.distance(model.next_token_logits(states.back()), want), 1e-4);
    EXPECT_FALSE(model.class_logits(states.back()).defined());
  } else {
    const Tensor logits = model.class_logits(states.back());
    EXPECT_LT((logits - tensor_of(want).view(logits.sizes())).abs().max().item<double>(), 1e-5);
    EXPECT_EQ(model.config().labels.size(), 3u);
  }
}

TEST_P(PretrainedFamily, PaddingIsNotSeen) {
  const Expected expected(GetParam());
  const Pretrained model = Pretrained::load(folder_of(GetParam()));
  Tensor other = expected.ids.clone();
  other[1].slice(0, 5) = 31;
  const Tensor a = model.hidden_states(expected.ids, expected.lengths).back(),
               b = model.hidden_states(other, expected.lengths).back();
  EXPECT_TRUE(torch::equal(a[1].slice(0, 0, 5), b[1].slice(0, 0, 5)));
  EXPECT_TRUE(torch::equal(model.mean_pooled(a, expected.lengths), model.mean_pooled(b, expected.lengths)));
}

TEST_P(PretrainedFamily, AttentionCanBeReplaced) {
  const Expected expected(GetParam());
  Pretrained model = Pretrained::load(folder_of(GetParam()));
  const Tensor before = model.hidden_states(expected.ids, expected.lengths).back();
  std::vector<int64_t> asked;
  const AttentionFunction softmax = model.attention;
  model.attention = [&](int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths) {
    asked.push_back(layer);
    return softmax(layer, q, k, v, lengths);
  };
  EXPECT_TRUE(torch::equal(model.hidden_states(expected.ids, expected.lengths).back(), before));
  EXPECT_EQ(asked, (std::vector<int64_t>{0, 1}));
}

TEST(Pretrained, HalfPrecisionAndShardsAreReadAsWell) {
  const TempFolder folder;
  const SafetensorsFile whole = load_safetensors((folder_of("bert") / "model.safetensors").string());
  folder.write("config.json", read_file(folder_of("bert") / "config.json"));
  NamedTensors parts[2];
  Json map = Json::object();
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    const std::string file = "part" + std::to_string(i % 2) + ".safetensors";
    parts[i % 2].emplace_back(whole.tensors[i].first, whole.tensors[i].second.to(torch::kBFloat16));
    map[whole.tensors[i].first] = file;
  }
  for (int part = 0; part < 2; ++part)
    save_safetensors((folder.path() / ("part" + std::to_string(part) + ".safetensors")).string(), parts[part]);
  folder.write("model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  const Expected expected("bert");
  const Pretrained model = Pretrained::load(folder.path());
  EXPECT_LT(
      expected.distance(model.hidden_states(expected.ids, expected.lengths).back(), expected.json.at("hidden").back()),
      0.1);
  folder.write("model.safetensors.index.json", R"({"weight_map": {"a": "../x.safetensors"}})");
  EXPECT_TRUE(contains(error_of(ExitCode::kData, [&] { Pretrained::load(folder.path()); }),
                       "in the same folder, got \"../x.safetensors\""));
  for (const char* name : {"..", ".", "", "a/b"})
    EXPECT_THROW(weight_files(Json{{"weight_map", {{"a", name}}}}.dump(), "index"), Error) << name;
}

TEST(Pretrained, MistakesAreNamed) {
  const TempFolder folder;
  auto refuse = [&](const std::string& words) {
    const std::string message = error_of(ExitCode::kData, [&] { Pretrained::load(folder.path()); });
    EXPECT_TRUE(contains(message, words)) << message;
  };
  refuse("expected config.json");
  Json config = Json::parse(read_file(folder_of("bert") / "config.json"));
  folder.write("config.json", config.dump());
  refuse("expected model.safetensors or");
  const std::string weights = read_file(folder_of("bert") / "model.safetensors");
  folder.write("model.safetensors", weights.substr(0, weights.size() - 4));
  refuse("not a safetensors file: ");
  folder.write("model.safetensors", weights);
  auto with = [&](const char* key, const Json& value) {
    Json changed = config;
    changed[key] = value;
    folder.write("config.json", changed.dump());
  };
  with("model_type", "t5");
  refuse("expected a model_type of bert, roberta or gpt2, got \"t5\"");
  with("hidden_act", "swish");
  refuse("got swish");
  with("num_attention_heads", 3);
  refuse("multiple of the heads");
  with("num_hidden_layers", 3);
  refuse("expected a tensor bert.encoder.layer.2.attention.self.query.weight");
  with("intermediate_size", 31);
  refuse("expected the shape (31, 16), got (32, 16)");
  with("vocab_size", -5);
  refuse("vocab_size");
  with("layer_norm_eps", -1e300);
  refuse("layer_norm_eps: expected a number from 0 to 1");
  with("position_embedding_type", "relative_key");
  refuse("expected absolute positions");
  EXPECT_THROW(
      Pretrained::load(folder_of("bert")).hidden_states(torch::zeros({1, 13}, torch::kLong), torch::tensor({13})),
      c10::Error);
}

}  // namespace
}  // namespace strata
