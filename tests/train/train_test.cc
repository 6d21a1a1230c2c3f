// Runs: what is refused, divergence, accumulation, early stopping, memory.
#include <gtest/gtest.h>

#include <fstream>

#include "data/task.h"
#include "model/mean_attention.h"
#include "model/model_file.h"
#include "train/checkpoint.h"
#include "train/evaluate.h"
#include "train/tiny_run.h"
#include "train/trainer.h"
#include "util/error.h"

namespace strata {
namespace {

using Runs = WithCache;

TEST_F(Runs, ScoreRatios) {
  TaskData data = load_task(tiny_config("flat").data);
  EXPECT_EQ(score_ratio(tiny_card("flat", data), data), 1.0);
  EXPECT_EQ(score_ratio(tiny_card("hkt", data), data), 1.3125);
  ModelCard star = tiny_card("hsa", data);
  EXPECT_LT(score_ratio(star, data), 0.5);
  star.tree = "star";
  EXPECT_EQ(score_ratio(star, data), 1.0);
  // The corners of Strata attention cost what HKT does.
  ModelCard strata = tiny_card("strata", data);
  EXPECT_LT(score_ratio(strata, data), 0.8);
  strata.tree = "star";
  EXPECT_NEAR(score_ratio(strata, data), 1.3125, 0.05);  // rows are short, and the last coarse row may be cut
  strata.tree = strata.config.tree = "none";
  strata.config.near = 1000;
  EXPECT_EQ(score_ratio(strata, data), 1.3125);
  strata.config.near = 1;
  EXPECT_LT(score_ratio(strata, data), 1.0);
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
  EXPECT_EQ(code_of([&] { train(config, folder, {.quiet = true}); }), ExitCode::kOk);
  EXPECT_EQ(code_of([&] { train(config, folder, {.quiet = true}); }), ExitCode::kOutput);  // holds a run already
  EXPECT_EQ(code_of([&] { train(config, folder, {.resume = true, .quiet = true}); }),
            ExitCode::kOk);  // finished: the same result
  config.model.heads = 3;    // does not divide 16
  EXPECT_EQ(code_of([&] { train(config, {fresh_folder("heads")}, {.quiet = true}); }), ExitCode::kUsage);
  config = tiny_config("hsa");
  config.model.tree = "quadtree";
  EXPECT_EQ(code_of([&] { train(config, {fresh_folder("tree")}, {.quiet = true}); }), ExitCode::kUsage);
  EXPECT_EQ(code_of([&] { train(tiny_config("flat"), {"/dev/null/run"}, {.quiet = true}); }), ExitCode::kOutput);
  // A checkpoint of another model.
  const RunFolder other{fresh_folder("other")};
  config = tiny_config("flat");
  config.train.steps = 2;
  train(config, other, {.quiet = true});
  fs::remove(other.result());
  config.model.model_size = 32;
  EXPECT_EQ(code_of([&] { train(config, other, {.resume = true, .quiet = true}); }), ExitCode::kOutput);
  EXPECT_EQ(code_of([&] { load_model(fresh_folder("nothing")); }), ExitCode::kOutput);
}

// Whatever the headers and tensors of a checkpoint say, it is refused with words, before anything is computed.
TEST_F(Runs, DamagedCheckpointsAreRefused) {
  RunConfig config = tiny_config("hsa");
  config.train.steps = 1;
  const RunFolder folder{fresh_folder("damaged")};
  train(config, folder, {.quiet = true});
  const TaskData data = load_task(config.data);
  const ModelCard card = tiny_card("hsa", data);
  SequenceModel model = make_model(card);
  AdamW optimizer(*model, 0.01);
  const SafetensorsFile last = load_tensors(folder.last()), best = load_tensors(folder.best());
  const fs::path path = folder.root / "changed.safetensors";
  auto refuse = [&](const SafetensorsFile& file, const std::string& words, auto&& work) {
    save_tensors(path, file.tensors, file.metadata);
    try {
      work();
      ADD_FAILURE() << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kOutput);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  auto resume = [&] { load_training(path, model, optimizer, card); };
  auto load = [&] { load_model(path); };
  auto with = [](SafetensorsFile file, const std::string& key, const char* pointer, const Json& value) {
    Json header = Json::parse(file.metadata.at(key));
    header[Json::json_pointer(pointer)] = value;
    file.metadata[key] = header.dump();
    return file;
  };
  refuse(with(last, "strata.state", "/adamw_steps", "x"), "the state of the run is damaged", resume);
  refuse(with(last, "strata.state", "/step", -1), "the state of the run is damaged", resume);
  refuse(with(last, "strata.model", "/task", "imdb"), "another model or task", resume);
  for (auto& [name, tensor] : SafetensorsFile(last).tensors) {
    SafetensorsFile other = last;
    for (auto& [key, value] : other.tensors) {
      if (key == name) value = name.rfind("exp_avg", 0) == 0 ? value.to(torch::kInt) : value.flatten().narrow(0, 0, 1);
    }
    if (tensor.numel() > 1) refuse(other, "expected", resume);
  }
  refuse(with(best, "strata.model", "/config/model_size", 1 << 20), "for the model that the header describes", load);
  refuse(with(best, "strata.model", "/config/layers", 1000), "for the model that the header describes", load);
  refuse(with(best, "strata.model", "/config/heads", 3), "the model header is damaged", load);
  refuse(with(best, "strata.model", "/labels", Json::array()), "one output for each label", load);
  // A checkpoint of a longer run.
  SafetensorsFile later = with(last, "strata.state", "/step", 1000);
  save_tensors(folder.last(), later.tensors, later.metadata);
  fs::remove(folder.result());
  try {
    train(config, folder, {.resume = true, .quiet = true});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("expected a checkpoint of at most 1 steps"), std::string::npos)
        << error.what();
  }
}

TEST_F(Runs, DivergenceIsReported) {
  RunConfig config = tiny_config("flat");
  config.train.learning_rate = 10;
  config.train.clip = 0;
  config.train.log_every = 1;
  config.train.epochs = 40;
  config.train.weight_decay = 9;  // lr * decay = 90: the weights explode
  try {
    train(config, {fresh_folder("diverge")}, {.quiet = true});
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
  const Json whole = train(config, {fresh_folder("whole")}, {.quiet = true});
  config.train.batch = 16;
  config.train.accumulate = 4;
  const Json parts = train(config, {fresh_folder("parts")}, {.quiet = true});
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
    const Json result = train(config, {fresh_folder("early")}, {.quiet = true});
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
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer keeps freed memory, and looks for leaks itself";
#endif
  const TaskData data = load_task(tiny_config("flat").data);
  for (const std::string& attention : all_attentions()) {
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
  train(config, {fresh_folder("memory")}, {.quiet = true});
  const double before = resident_megabytes();
  config.train.epochs = 20;
  train(config, {fresh_folder("memory")}, {.quiet = true});
  EXPECT_LT(resident_megabytes() - before, 16);
}

}  // namespace
}  // namespace strata
