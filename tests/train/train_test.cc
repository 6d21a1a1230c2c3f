// Models and runs: padding and the future do not leak, checkpoints are whole, runs go on to the same result, memory
// stays.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "data/task.h"
#include "model/embedding.h"
#include "model/model_file.h"
#include "train/evaluate.h"
#include "train/setup.h"
#include "train/trainer.h"
#include "util/error.h"

namespace strata {
namespace {

using torch::Tensor;

fs::path fresh_folder(const std::string& name) {
  const fs::path folder = fs::temp_directory_path() / ("strata_train_test_" + name);
  fs::remove_all(folder);
  return folder;
}

RunConfig tiny_config(const std::string& attention) {
  RunConfig config;
  config.data.train_rows = 256;
  config.data.valid_rows = config.data.test_rows = 64;
  config.model.attention = attention;
  config.model.model_size = 16;
  config.model.heads = 2;
  config.train.batch = 32;
  config.train.threads = 1;
  return config;
}

class WithCache : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { setenv("XDG_CACHE_HOME", fresh_folder("cache").c_str(), 1); }
};
using Attentions = WithCache;
using Runs = WithCache;

ModelCard tiny_card(const std::string& attention, const TaskData& data) {
  return make_card(tiny_config(attention), data);
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
  for (const char* attention : {"flat", "hkt", "hsa"}) {
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
  for (const char* attention : {"flat", "hkt", "hsa"}) {
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
  for (const char* attention : {"flat", "hkt", "hsa"}) {
    const ModelCard card = tiny_card(attention, data);
    SequenceModel model = make_model(card);
    LoaderOptions options;
    options.trees = tree_maker(card);
    const Batch batch = make_batch(data.train, options, 0);
    loss_of(model->forward(to_input(batch, torch::kCPU)), batch, 0.1).mean.backward();
    for (const auto& item : model->named_parameters()) {
      // One level has nothing to mix.
      if (std::string(attention) == "flat" && item.key().find("level_logits") != std::string::npos) continue;
      ASSERT_TRUE(item.value().grad().defined()) << attention << " " << item.key();
      EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << attention << " " << item.key();
    }
  }
}

TEST_F(Attentions, ModelFilesCarryEverything) {
  const TaskData data = load_task(tiny_config("flat").data);
  const fs::path folder = fresh_folder("model");
  fs::create_directories(folder);
  for (const char* attention : {"flat", "hkt", "hsa"}) {
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

TEST_F(Attentions, ScoreRatios) {
  TaskData data = load_task(tiny_config("flat").data);
  EXPECT_EQ(score_ratio(tiny_card("flat", data), data), 1.0);
  EXPECT_EQ(score_ratio(tiny_card("hkt", data), data), 1.3125);
  ModelCard star = tiny_card("hsa", data);
  EXPECT_LT(score_ratio(star, data), 0.5);
  star.tree = "star";
  EXPECT_EQ(score_ratio(star, data), 1.0);
}

TEST_F(Runs, RefuseFoldersAndOptionsThatDoNotFit) {
  auto code_of = [](const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode::kOk;
  };
  const RunFolder folder{fresh_folder("refuse")};
  RunConfig config = tiny_config("flat");
  config.train.steps = 2;
  EXPECT_EQ(code_of([&] { train(config, folder, false, true); }), ExitCode::kOk);
  EXPECT_EQ(code_of([&] { train(config, folder, false, true); }), ExitCode::kOutput);  // holds a run already
  EXPECT_EQ(code_of([&] { train(config, folder, true, true); }), ExitCode::kOk);       // finished: the same result
  config.model.heads = 3;                                                              // does not divide 16
  EXPECT_EQ(code_of([&] { train(config, {fresh_folder("heads")}, false, true); }), ExitCode::kUsage);
  config = tiny_config("hsa");
  config.model.tree = "quadtree";
  EXPECT_EQ(code_of([&] { train(config, {fresh_folder("tree")}, false, true); }), ExitCode::kUsage);
  EXPECT_EQ(code_of([&] { train(tiny_config("flat"), {"/dev/null/run"}, false, true); }), ExitCode::kOutput);
  // A checkpoint of another model.
  const RunFolder other{fresh_folder("other")};
  config = tiny_config("flat");
  config.train.steps = 2;
  train(config, other, false, true);
  fs::remove(other.result());
  config.model.model_size = 32;
  EXPECT_EQ(code_of([&] { train(config, other, true, true); }), ExitCode::kOutput);
  EXPECT_EQ(code_of([&] { load_model(fresh_folder("nothing")); }), ExitCode::kOutput);
}

TEST_F(Runs, DivergenceIsReported) {
  RunConfig config = tiny_config("flat");
  config.train.learning_rate = 10;
  config.train.clip = 0;
  config.train.log_every = 1;
  config.train.epochs = 40;
  config.train.weight_decay = 9;  // lr * decay = 90: the weights explode
  try {
    train(config, {fresh_folder("diverge")}, false, true);
    FAIL() << "expected the loss to become infinite";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("not finite"), std::string::npos) << error.what();
  }
}

TEST_F(Runs, AccumulationEqualsTheLargerBatch) {
  RunConfig config = tiny_config("hkt");
  config.model.dropout = 0;
  config.train.epochs = 1;
  config.train.batch = 64;
  const Json whole = train(config, {fresh_folder("whole")}, false, true);
  config.train.batch = 16;
  config.train.accumulate = 4;
  const Json parts = train(config, {fresh_folder("parts")}, false, true);
  EXPECT_EQ(whole.at("steps"), parts.at("steps"));
  EXPECT_NEAR(whole.at("valid").at("loss").get<double>(), parts.at("valid").at("loss").get<double>(), 1e-3);
}

TEST_F(Runs, Bf16AndEarlyStopping) {
  RunConfig config = tiny_config("hkt");
  config.train.precision = "bf16";
  config.train.eval_every = 2;
  config.train.patience = 1;
  config.train.epochs = 50;
  config.train.learning_rate = 0;  // nothing gets better
  for (const char* attention : {"flat", "hkt", "hsa", "normalised hsa"}) {
    config.model.normalize = std::string(attention) == "normalised hsa";
    config.model.attention = config.model.normalize ? "hsa" : attention;
    const Json result = train(config, {fresh_folder("early")}, false, true);
    EXPECT_TRUE(result.at("stopped_early"));
    EXPECT_EQ(result.at("steps"), 4) << attention;  // the first evaluation is the best, the second is no better
    EXPECT_EQ(result.at("best_step"), 2);
  }
}

double resident_megabytes() {
  std::ifstream status("/proc/self/statm");
  long total = 0, resident = 0;
  status >> total >> resident;
  return static_cast<double>(resident) * 4096 / 1e6;
}

TEST_F(Runs, TenThousandEvaluationBatchesLeakNothing) {
  const TaskData data = load_task(tiny_config("flat").data);
  for (const char* attention : {"flat", "hkt", "hsa"}) {
    const ModelCard card = tiny_card(attention, data);
    SequenceModel model = make_model(card);
    auto run = [&](int passes) {
      for (int pass = 0; pass < passes; ++pass) evaluate(model, card, data.test, {.batch = 1});  // 64 batches
    };
    run(10);
    const double before = resident_megabytes();
    run(53);  // with the others, 3 x 3,392 batches
    EXPECT_LT(resident_megabytes() - before, 8) << attention;
  }
}

TEST_F(Runs, MemoryStaysFlatOverEpochs) {
  RunConfig config = tiny_config("hsa");
  config.train.epochs = 2;
  train(config, {fresh_folder("memory")}, false, true);
  const double before = resident_megabytes();
  config.train.epochs = 20;
  train(config, {fresh_folder("memory")}, false, true);
  EXPECT_LT(resident_megabytes() - before, 16);
}

}  // namespace
}  // namespace strata
