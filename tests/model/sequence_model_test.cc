// Models: padding and the future do not leak, every parameter learns, files carry everything, streams equal the whole
// forward pass.
#include "model/sequence_model.h"

#include <gtest/gtest.h>

#include "data/task.h"
#include "model/embedding.h"
#include "model/mean_attention.h"
#include "model/model_file.h"
#include "train/evaluate.h"
#include "train/tiny_run.h"

namespace strata {
namespace {

using torch::Tensor;
using Attentions = WithCache;

TEST(Attention, NamesAreRegisteredOnce) {
  EXPECT_EQ(all_attentions(), (std::vector<std::string>{"flat", "hkt", "hsa", "strata", "mean"}));
  EXPECT_EQ(all_attentions().size(), 5u);
  ModelConfig config;
  config.attention = "none";
  EXPECT_THROW(make_attention(config, {}), c10::Error);
}

// Equals torch's own embedding, values and gradient, for tokens that repeat, miss and fill a batch.
TEST(Embedding, EqualsTorch) {
  torch::manual_seed(2);
  Tensor ours = torch::randn({11, 6}).set_requires_grad(true), theirs = ours.detach().clone().set_requires_grad(true);
  const Tensor tokens = torch::randint(0, 10, {5, 40}), gradient = torch::randn({5, 40, 6});
  const Tensor out = embed_tokens(ours, tokens), expected = torch::embedding(theirs, tokens);
  EXPECT_TRUE(torch::equal(out, expected));
  out.backward(gradient);
  expected.backward(gradient);
  EXPECT_TRUE(torch::allclose(ours.grad(), theirs.grad(), 1e-5, 1e-6));
  EXPECT_EQ(ours.grad()[10].abs().sum().item<float>(), 0) << "a word that does not appear";
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms()) << "the user's choice is kept";
}

// The outputs of one row must not depend on the rows beside it, which only add padding.
TEST_F(Attentions, PaddingDoesNotLeak) {
  const TaskData data = load_task(tiny_config("flat").data);
  for (const std::string& attention : all_attentions()) {
    const ModelCard card = tiny_card(attention, data);
    torch::manual_seed(1);
    SequenceModel model = make_model(card);
    model->eval();
    torch::NoGradGuard no_grad;
    LoaderOptions together, alone;
    together.trees = alone.trees = tree_maker(card);
    together.batch = 16;
    alone.batch = 1;
    const Tensor all = model->forward(to_input(make_batch(data.test, together, 0), torch::kCPU));
    for (int64_t row = 0; row < 16; ++row) {
      const Tensor one = model->forward(to_input(make_batch(data.test, alone, row), torch::kCPU));
      EXPECT_TRUE(torch::allclose(one[0], all[row], 1e-4, 1e-5)) << attention << " row " << row;
    }
  }
}

TEST_F(Attentions, LanguageModelsDoNotSeeTheFuture) {
  for (const std::string& attention : all_attentions()) {
    ModelCard card;
    card.config.attention = attention;
    card.config.model_size = 16;
    card.config.heads = 2;
    card.config.branching = 4;
    card.shape = {257, 257, 64, true, 1, 4};
    torch::manual_seed(2);
    SequenceModel model = make_model(card);
    model->eval();
    torch::NoGradGuard no_grad;
    ModelInput input{torch::randint(1, 257, {2, 50}, torch::kLong), torch::full({2}, 50, torch::kLong), {}};
    const Tensor before = model->forward(input);
    ASSERT_EQ(before.sizes(), (std::vector<int64_t>{2, 50, 257}));
    input.tokens = input.tokens.clone();
    input.tokens.narrow(1, 30, 20) = 5;
    const Tensor after = model->forward(input);
    EXPECT_TRUE(torch::equal(before.narrow(1, 0, 30), after.narrow(1, 0, 30))) << attention;
    EXPECT_FALSE(torch::allclose(before.narrow(1, 30, 20), after.narrow(1, 30, 20))) << attention;
  }
}

TEST_F(Attentions, EveryParameterGetsAGradient) {
  const TaskData data = load_task(tiny_config("flat").data);
  for (const std::string& attention : all_attentions()) {
    const ModelCard card = tiny_card(attention, data);
    SequenceModel model = make_model(card);
    LoaderOptions options;
    options.trees = tree_maker(card);
    const Batch batch = make_batch(data.train, options, 0);
    loss_of(model->forward(to_input(batch, torch::kCPU)), batch, 0.1).mean.backward();
    for (const auto& item : model->named_parameters()) {
      // One level has nothing to mix.
      if (attention == "flat" && item.key().find("level_logits") != std::string::npos) continue;
      ASSERT_TRUE(item.value().grad().defined()) << attention << " " << item.key();
      EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << attention << " " << item.key();
    }
  }
}

TEST_F(Attentions, ModelFilesCarryEverything) {
  const TaskData data = load_task(tiny_config("flat").data);
  const fs::path folder = fresh_folder("model");
  fs::create_directories(folder);
  for (const std::string& attention : all_attentions()) {
    const ModelCard card = tiny_card(attention, data);
    SequenceModel model = make_model(card);
    save_model(folder / "m.safetensors", model, card);
    LoadedModel loaded = load_model(folder / "m.safetensors");
    EXPECT_EQ(loaded.card.to_json(), card.to_json());
    const Evaluation a = evaluate(model, card, data.test, {}), b = evaluate(loaded.model, loaded.card, data.test, {});
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.accuracy, b.accuracy);
  }
}

TEST(SequenceModelStream, EqualsTheWholeForwardPass) {
  for (const std::string& attention : all_attentions()) {
    for (const char* positions : {"learned", "rotary", "none"}) {
      torch::manual_seed(3);
      ModelConfig config;
      config.attention = attention;
      config.positions = positions;
      config.model_size = 16;
      config.heads = 2;
      config.branching = 3;
      ModelShape shape;
      shape.vocabulary = shape.outputs = 20;
      shape.length = 40;
      shape.next_token = true;
      SequenceModel model(config, shape);
      model->eval();
      torch::NoGradGuard no_grad;
      // Only a table of positions ends with the length of training.
      const int64_t tokens = std::string(positions) == "learned" ? 40 : 100;
      const Tensor ids = torch::randint(1, 20, {1, tokens}, torch::kLong);
      const Tensor whole = model->forward({ids, torch::tensor({tokens}), {}})[0];
      auto stream = model->start_stream();
      for (int64_t t = 0; t < tokens; ++t) {
        const Tensor step = model->step(ids[0][t].item<int64_t>(), stream);
        EXPECT_LT((step - whole[t]).abs().max().item<double>(), 1e-4)
            << attention << " " << positions << " token " << t;
      }
      EXPECT_GT(stream.bytes(), 0);
      // A prompt in one pass, then several tokens behind it, then one.
      std::vector<int64_t> all(ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + tokens);
      auto read = model->start_stream();
      int64_t end = 0;
      for (const int64_t count : {17, 3, 1}) {
        const Tensor logits = model->read({all.begin() + end, all.begin() + end + count}, read);
        end += count;
        EXPECT_LT((logits - whole[end - 1]).abs().max().item<double>(), 1e-4) << attention << " " << positions;
      }
      EXPECT_THROW(model->read({}, read), c10::Error);
      if (std::string(positions) == "learned") {
        EXPECT_THROW(model->step(1, stream), c10::Error);
        const Tensor longer = torch::ones({1, 41}, torch::kLong);
        EXPECT_THROW(model->forward({longer, torch::tensor({41}), {}}), c10::Error);
      }
    }
  }
}

}  // namespace
}  // namespace strata
