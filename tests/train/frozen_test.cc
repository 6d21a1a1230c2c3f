// Models over the frozen word embeddings of a pretrained encoder.
#include <gtest/gtest.h>

#include "data/support.h"
#include "data/task.h"
#include "train/tiny_run.h"
#include "train/trainer.h"

namespace strata {
namespace {

using torch::Tensor;

constexpr int64_t kWords = 10, kChannels = 6;

struct Encoder : TempFolder {
  Tensor table;
  Encoder() {
    torch::manual_seed(5);
    table = 0.1 * torch::randn({kWords + 2, kChannels});  // a model may have rows beyond its tokenizer's
    write("encoder/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\nbad\nfilm\n##s\n.\n");
    write("encoder/config.json", R"({"model_type":"bert","num_hidden_layers":1,"hidden_size":6,"num_attention_heads":2,
      "intermediate_size":8,"vocab_size":12,"max_position_embeddings":16,"type_vocab_size":2,"hidden_act":"gelu"})");
    save_tensors(path() / "encoder/model.safetensors", {{"bert.embeddings.word_embeddings.weight", table}}, {});
    std::string rows = "label,text\n";
    for (int i = 0; i < 60; ++i) rows += i % 2 == 0 ? "yes,Good films. A film\n" : "no,A bad film. Films\n";
    write("t.csv", rows);
  }
  RunConfig config(const std::string& attention = "hsa") const {
    RunConfig config = tiny_config(attention);
    config.data.task = "table";
    config.data.data = (path() / "t.csv").string();
    config.data.train_rows = config.data.valid_rows = config.data.test_rows = 0;
    config.data.tokens = "pieces";
    config.data.embeddings = (path() / "encoder").string();
    config.train.batch = 8;
    config.train.epochs = 2;
    return config;
  }
};

TEST(Frozen, TheTableIsTheFoldersAndNoParameter) {
  const Encoder encoder;
  const RunConfig config = encoder.config();
  const ModelCard card = make_card(config, load_task(config.data));
  EXPECT_EQ(card.shape.frozen, kChannels);
  SequenceModel model = make_model(card, config.data.embeddings);
  const Tensor frozen = model->named_buffers()["frozen_embedding"];
  EXPECT_TRUE(torch::equal(frozen.narrow(0, 2, kWords), encoder.table.narrow(0, 0, kWords)));
  EXPECT_EQ(frozen.narrow(0, 0, 2).abs().sum().item<float>(), 0) << "padding and unknown words";
  for (const auto& item : model->named_parameters()) {
    EXPECT_EQ(item.key().find("frozen"), std::string::npos);
    EXPECT_NE(item.value().numel(), frozen.numel()) << item.key();
  }
  int64_t count = 0;
  for (const Tensor& weights : model->parameters()) count += weights.numel();
  EXPECT_EQ(model->parameter_count(), count);
  const Tensor tokens = torch::linear(frozen.narrow(0, 2, kWords), model->named_parameters()["embedding_map.weight"]);
  EXPECT_NEAR(tokens.square().mean().item<double>(), 1, 0.5) << "channels begin near 1";
}

TEST(Frozen, TrainingMovesTheMapAndNotTheTable) {
  const Encoder encoder;
  const RunConfig config = encoder.config();
  const ModelCard card = make_card(config, load_task(config.data));
  torch::manual_seed(1);
  SequenceModel before = make_model(card, config.data.embeddings);
  const fs::path run = fresh_folder("frozen");
  train(config, {run}, {.quiet = true});
  fs::remove_all(config.data.embeddings);  // the file has all that it takes
  const LoadedModel trained = load_model(run);
  EXPECT_EQ(trained.card.to_json(), card.to_json());
  EXPECT_TRUE(
      torch::equal(trained.model->named_buffers()["frozen_embedding"], before->named_buffers()["frozen_embedding"]));
  EXPECT_FALSE(torch::allclose(trained.model->named_parameters()["embedding_map.weight"],
                               before->named_parameters()["embedding_map.weight"]));
  const SafetensorsFile last = load_tensors(run / "last.safetensors");
  for (const auto& [name, tensor] : last.tensors) EXPECT_EQ(name.find("frozen"), std::string::npos) << name;
}

TEST(Frozen, FilesOfOtherModelsAreRefused) {
  const Encoder encoder;
  const RunConfig config = encoder.config();
  const TaskData data = load_task(config.data);
  const ModelCard card = make_card(config, data);
  const fs::path weights = encoder.path() / "encoder/model.safetensors";
  auto error = [&] { return error_of(ExitCode::kData, [&] { make_model(card, config.data.embeddings); }); };
  save_tensors(weights, {{"other", encoder.table}}, {});
  EXPECT_SAYS(error(), "expected a tensor embeddings.word_embeddings.weight, found none");
  save_tensors(weights, {{"embeddings.word_embeddings.weight", encoder.table.narrow(0, 0, kWords).contiguous()}}, {});
  EXPECT_SAYS(error(), "expected the shape (12, 6), got (10, 6)");
  fs::remove(weights);
  EXPECT_SAYS(error(), "expected model.safetensors");
  fs::remove(encoder.path() / "encoder/config.json");
  EXPECT_SAYS(error_of(ExitCode::kData, [&] { make_card(config, data); }), "expected config.json in this folder");
}

TEST(Frozen, CardsThatDoNotHoldTogetherAreRefused) {
  const Encoder encoder;
  const RunConfig config = encoder.config();
  const Json json = Json::parse(make_card(config, load_task(config.data)).to_json().dump());
  EXPECT_EQ(ModelCard::from_json(json, "m").to_json(), json);
  auto refuse = [&](const char* pointer, const Json& value, const char* part) {
    Json changed = json;
    changed[Json::json_pointer(pointer)] = value;
    EXPECT_SAYS(error_of(ExitCode::kOutput, [&] { ModelCard::from_json(changed, "m"); }), part);
  };
  refuse("/shape/frozen", 0, "frozen embeddings where tokens are word pieces");
  refuse("/pieces", "", "frozen embeddings where tokens are word pieces");
  refuse("/pieces", "{}", "expected an object \"model\"");
  refuse("/words/1", "other", "expected the unknown token [UNK]");
  Json older = Json::parse(tiny_card("flat", load_task(tiny_config("flat").data)).to_json().dump());
  older["shape"].erase("frozen");  // a file from before
  EXPECT_EQ(ModelCard::from_json(older, "m").shape.frozen, 0);
}

}  // namespace
}  // namespace strata
