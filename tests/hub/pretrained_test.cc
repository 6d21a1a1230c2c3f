// Pretrained transformers against the reference implementation, and damaged folders.
#include "hub/pretrained.h"

#include <gtest/gtest.h>

#include <cmath>
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
INSTANTIATE_TEST_SUITE_P(Families, PretrainedFamily,
                         testing::Values("bert", "roberta", "gpt2", "llama", "llama_linear", "qwen2", "qwen2_yarn"),
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

// The likeliest token after each prompt, read anew every time, as transformers finds it.
TEST(Pretrained, GreedyTextIsTheReferences) {
  for (const char* name : {"llama", "llama_linear", "qwen2", "qwen2_yarn"}) {
    const Expected expected(name);
    const Pretrained model = Pretrained::load(folder_of(name));
    Tensor ids = expected.ids.slice(0, 0, 1);
    for (const Json& want : expected.json.at("greedy").at("ids")) {
      const Tensor last = model.hidden_states(ids, torch::tensor({ids.size(1)})).back().select(1, ids.size(1) - 1);
      const Tensor next = model.next_token_logits(last).argmax(-1);
      ASSERT_EQ(next.item<int64_t>(), want.get<int64_t>()) << name << " after " << ids.size(1) << " tokens";
      ids = torch::cat({ids, next.view({1, 1})}, 1);
    }
  }
}

// A prompt in two parts, the second one with positions that go on.
TEST(Pretrained, PositionsGoOnFromTheFirst) {
  const Expected expected("llama");
  Pretrained model = Pretrained::load(folder_of("llama"));
  std::vector<Tensor> rotated[2];
  for (const int64_t first : {0, 5}) {
    model.attention = [&](int64_t, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&) {
      rotated[first > 0].push_back(k);
      EXPECT_EQ(q.sizes(), (std::vector<int64_t>{1, 4, 3, 8}));
      EXPECT_EQ(k.sizes(), (std::vector<int64_t>{1, 2, 3, 8}));
      EXPECT_EQ(v.sizes(), k.sizes());
      return torch::zeros_like(q);
    };
    model.hidden_states(expected.ids.slice(0, 0, 1).slice(1, 0, 3), torch::tensor({3}), first);
  }
  EXPECT_FALSE(torch::allclose(rotated[0][0], rotated[1][0]));
  EXPECT_TRUE(torch::allclose(rotated[0][0].norm(), rotated[1][0].norm()));
}

TEST(PretrainedConfig, RotaryPositionsAreReadInEitherForm) {
  Json json = Json::parse(read_file(folder_of("llama") / "config.json"));
  const PretrainedConfig now = PretrainedConfig::from_json(json.dump(), "c");
  EXPECT_EQ(now.rotary.scaling, RotaryConfig::Scaling::kLlama3);
  EXPECT_EQ(now.ends, (std::vector<int64_t>{1, 2}));
  Json scaling = json.at("rope_parameters");
  json["rope_theta"] = scaling.at("rope_theta");
  scaling.erase("rope_theta");
  json["rope_scaling"] = scaling;
  json.erase("rope_parameters");
  const PretrainedConfig before = PretrainedConfig::from_json(json.dump(), "c");
  EXPECT_EQ(before.rotary.frequencies(8), now.rotary.frequencies(8));
  // 20 positions, base 30: the first channel turns 3.18 times, which is blended; the others turn less than once or
  // between once and four times.
  const std::vector<double> scaled = now.rotary.frequencies(8);
  for (size_t c = 0; c < scaled.size(); ++c) {
    const double frequency = std::pow(30.0, -2.0 * static_cast<double>(c) / 8), wave = 2 * M_PI / frequency;
    double want = frequency;
    if (wave > 20.0 / 1) {
      want = frequency / 8;
    } else if (wave > 20.0 / 4) {
      const double smooth = (20.0 / wave - 1) / (4 - 1);
      want = (1 - smooth) * frequency / 8 + smooth * frequency;
    }
    EXPECT_NEAR(scaled[c], want, 1e-12) << c;
  }
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  EXPECT_NEAR(PretrainedConfig::from_json(json.dump(), "c").rotary.frequencies(8)[1], std::pow(30.0, -0.25) / 4, 1e-12);
  json["rope_scaling"] = nullptr;
  EXPECT_NEAR(PretrainedConfig::from_json(json.dump(), "c").rotary.frequencies(8)[1], std::pow(30.0, -0.25), 1e-12);
}

TEST(PretrainedConfig, WhatLlamaAndQwen2MayNotHaveIsNamed) {
  const Json llama = Json::parse(read_file(folder_of("llama") / "config.json"));
  auto refuse = [&](const char* key, const Json& value, const std::string& words) {
    Json changed = llama;
    changed[key] = value;
    const std::string message =
        error_of(ExitCode::kData, [&] { PretrainedConfig::from_json(changed.dump(), "config.json"); });
    EXPECT_TRUE(contains(message, words)) << message;
  };
  const std::string types = "rope_parameters: expected a rope_type of default, linear, llama3 or yarn, got ";
  refuse("rope_parameters", {{"rope_type", "dynamic"}, {"factor", 2.0}}, types + "dynamic");
  refuse("rope_parameters", {{"rope_type", "longrope"}, {"factor", 2.0}}, types + "longrope");
  refuse("rope_parameters", {{"rope_type", "yarn"}}, "rope_parameters: expected a factor, found none");
  refuse("rope_parameters", {{"rope_type", "yarn"}, {"factor", 2.0}, {"beta_fast", 1.0}, {"beta_slow", 2.0}},
         "expected a beta_fast above the beta_slow, got 1 and 2");
  refuse("rope_parameters", {{"rope_type", "yarn"}, {"factor", 2.0}, {"rope_theta", 1.0}},
         "expected a rope_theta above 1 with yarn, got 1");
  refuse("rope_parameters", {{"rope_type", "linear"}}, "rope_parameters: expected a factor, found none");
  refuse("rope_parameters", {{"rope_type", "linear"}, {"factor", 0.5}}, "factor: expected a number from 1");
  refuse("rope_parameters", {{"rope_type", "llama3"}, {"factor", 2}}, "expected low_freq_factor, found none");
  refuse("rope_parameters", 3, "rope_parameters: expected an object, got 3");
  refuse("partial_rotary_factor", 0.5, "partial_rotary_factor: expected 1");
  refuse("num_key_value_heads", 3, "expected num_key_value_heads that divide num_attention_heads, got 3 and 4");
  refuse("head_dim", 7, "expected heads of an even number of channels, 2 to 256, got 7");
  refuse("head_dim", 512, "2 to 256, got 512");
  refuse("hidden_act", "gelu", "expected an activation of silu, got gelu");
  refuse("use_sliding_window", true, "got sliding windows");
  refuse("layer_types", {"full_attention", "sliding_attention"}, "got sliding windows");
  refuse("rms_norm_eps", -1, "rms_norm_eps: expected a number from 0 to 1");
  refuse("tie_word_embeddings", "yes", "tie_word_embeddings: expected true or false, got \"yes\"");
  refuse("eos_token_id", "x", "eos_token_id: expected the id of a token, or several");
  EXPECT_EQ(end_tokens(R"({"eos_token_id": 7})", "g"), (std::vector<int64_t>{7}));
  EXPECT_TRUE(end_tokens(R"({"eos_token_id": null})", "g").empty());
}

TEST(Pretrained, AHeadOfItsOwnIsRequiredUnlessItIsTied) {
  const TempFolder folder;
  Json config = Json::parse(read_file(folder_of("qwen2") / "config.json"));
  for (const char* file : {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                           "model-00003-of-00003.safetensors", "model.safetensors.index.json"})
    folder.write(file, read_file(folder_of("qwen2") / file));
  config["tie_word_embeddings"] = false;
  folder.write("config.json", config.dump());
  EXPECT_TRUE(contains(error_of(ExitCode::kData, [&] { Pretrained::load(folder.path()); }),
                       "expected a tensor lm_head.weight, or tie_word_embeddings"));
  config["tie_word_embeddings"] = true;
  folder.write("config.json", config.dump());
  folder.write("generation_config.json", R"({"eos_token_id": [4, 5]})");
  const Pretrained model = Pretrained::load(folder.path());
  EXPECT_EQ(model.config().ends, (std::vector<int64_t>{4, 5}));
  EXPECT_TRUE(contains(error_of(ExitCode::kData, [&] { tokenizer_of(folder.path(), model.config()); }),
                       "expected tokenizer.json"));
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
  refuse("expected a model_type of bert, roberta, gpt2, llama or qwen2, got \"t5\"");
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
