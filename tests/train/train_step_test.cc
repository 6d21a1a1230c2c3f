// A step as a class: the same as its parts one by one, and recorded on a GPU the same bits as not recorded.
#include "train/train_step.h"

#include <gtest/gtest.h>

#include "train/tiny_run.h"

namespace strata {
namespace {

using torch::Tensor;

std::vector<int64_t> draw(int64_t from, int64_t to, int64_t count) {
  const Tensor numbers = torch::randint(from, to, {count}, torch::kLong);
  return {numbers.data_ptr<int64_t>(), numbers.data_ptr<int64_t>() + count};
}

struct Fixture {
  explicit Fixture(const std::string& attention, bool next_token = false, torch::Device device = torch::kCPU,
                   StepOptions options = {})
      : lm(next_token) {
    torch::manual_seed(3);
    ModelConfig config = tiny_config(attention).model;
    config.model_size = 32;
    config.dropout = 0.2;
    ModelShape shape;
    shape.vocabulary = 19;
    shape.outputs = next_token ? 19 : 4;
    shape.length = 64;
    shape.next_token = next_token;
    if (attention == "strata" && !next_token) config.tree = "none";
    model = SequenceModel(config, shape);
    model->to(device);
    optimizer = std::make_unique<AdamW>(*model, 0.1);
    step = std::make_unique<TrainStep>(model, *optimizer, std::move(options));
  }
  Batch batch(int64_t rows, int64_t width, uint64_t seed) const {
    torch::manual_seed(seed);
    Batch b;
    b.rows = rows;
    b.width = width;
    b.tokens = draw(1, 19, rows * width);
    b.lengths = draw(width / 2, width + 1, rows);
    b.targets = lm ? draw(-1, 19, rows * width) : draw(0, 4, rows);
    return b;
  }
  std::vector<Tensor> weights() const {
    std::vector<Tensor> all;
    for (const Tensor& parameter : model->parameters()) all.push_back(parameter.detach().to(torch::kCPU).clone());
    return all;
  }

  bool lm;
  SequenceModel model{nullptr};
  std::unique_ptr<AdamW> optimizer;
  std::unique_ptr<TrainStep> step;
};

void expect_same_bits(const Fixture& a, const Fixture& b, const std::string& what) {
  const std::vector<Tensor> left = a.weights(), right = b.weights();
  for (size_t n = 0; n < left.size(); ++n) EXPECT_TRUE(torch::equal(left[n], right[n])) << what << ", parameter " << n;
}

constexpr double kRate = 1e-2;

TEST(TrainStep, IsItsPartsOneByOne) {
  Fixture whole("hkt"), parts("hkt");
  for (int64_t n = 0; n < 6; ++n) {
    const std::vector<Batch> batches = {whole.batch(3, 20, n), whole.batch(2, 17, 100 + n)};
    const std::vector<Loss> losses = (*whole.step)(batches, kRate, 7 + n);
    torch::manual_seed(7 + n);
    parts.model->train();
    parts.optimizer->zero_grad();
    for (size_t at = 0; at < batches.size(); ++at) {
      const Loss loss = loss_of(parts.model->forward(to_input(batches[at], torch::kCPU)), batches[at], 0.0);
      (loss.mean / 2.0).backward();
      EXPECT_TRUE(torch::equal(loss.mean, losses[at].mean));
      EXPECT_EQ(loss.correct.item<int64_t>(), losses[at].correct.item<int64_t>());
      EXPECT_EQ(loss.counted, losses[at].counted);
    }
    parts.optimizer->clip(1.0);
    parts.optimizer->step(kRate);
  }
  expect_same_bits(whole, parts, "parts");
  EXPECT_EQ(whole.step->replays(), 0);
}

// ------------------------------------------------------------------------------------------------- on a GPU

#define NEEDS_GPU() \
  if (!can_record() || !torch::cuda::is_available()) GTEST_SKIP() << "there is no GPU here, or no CUDA kernels"

StepOptions on_gpu(bool graphs, bool bf16 = true) {
  StepOptions options;
  options.bf16 = bf16;
  options.graphs = graphs;
  return options;
}

struct Recorded {
  const char* attention;
  bool next_token, bf16;
};

class RecordedStep : public ::testing::TestWithParam<Recorded> {};

TEST_P(RecordedStep, ReplaysComputeTheSameBits) {
  NEEDS_GPU();
  const Recorded& spec = GetParam();
  Fixture recorded(spec.attention, spec.next_token, torch::kCUDA, on_gpu(true, spec.bf16)),
      plain(spec.attention, spec.next_token, torch::kCUDA, on_gpu(false, spec.bf16));
  for (int64_t n = 0; n < 12; ++n) {
    // Ragged batches between, and two batches in every third step.
    std::vector<Batch> batches = {recorded.batch(n % 5 == 4 ? 3 : 8, 48, n)};
    if (n % 3 == 2) batches.push_back(recorded.batch(8, 48, 200 + n));
    const double rate = kRate / static_cast<double>(1 + n);
    const std::vector<Loss> a = (*recorded.step)(batches, rate, 50 + n), b = (*plain.step)(batches, rate, 50 + n);
    for (size_t at = 0; at < batches.size(); ++at) {
      EXPECT_TRUE(torch::equal(a[at].mean, b[at].mean)) << "step " << n;
      EXPECT_EQ(a[at].correct.item<int64_t>(), b[at].correct.item<int64_t>()) << "step " << n;
    }
  }
  expect_same_bits(recorded, plain, "recorded");
  EXPECT_GT(recorded.step->replays(), 0);
  EXPECT_EQ(plain.step->replays(), 0);
}

INSTANTIATE_TEST_SUITE_P(Attentions, RecordedStep,
                         ::testing::Values(Recorded{"flat", false, true}, Recorded{"hkt", false, true},
                                           Recorded{"hkt", false, false}, Recorded{"hkt", true, true},
                                           Recorded{"hsa", true, true}, Recorded{"strata", true, true},
                                           Recorded{"strata", false, true}),
                         [](const auto& info) {
                           return std::string(info.param.attention) + (info.param.next_token ? "_text" : "") +
                                  (info.param.bf16 ? "" : "_float32");
                         });

TEST(TrainStep, ReplaysDropByTheirSeed) {
  NEEDS_GPU();
  Fixture f("hkt", false, torch::kCUDA, on_gpu(true));
  const Batch batch = f.batch(8, 48, 1);
  auto loss = [&](uint64_t seed) { return (*f.step)({batch}, 0.0, seed)[0].mean.item<double>(); };
  std::vector<double> first;
  for (uint64_t n = 0; n < 4; ++n) first.push_back(loss(n));
  EXPECT_EQ(f.step->replays(), 1);
  // A rate of zero keeps the weights, so that the seed alone decides.
  for (uint64_t n = 0; n < 4; ++n) EXPECT_EQ(loss(n), first[n]);
  EXPECT_EQ(f.step->replays(), 5);
  EXPECT_NE(first[0], first[1]);
  EXPECT_NE(loss(11), loss(12));
}

// A process that goes on from a checkpoint runs its first steps unrecorded.
TEST(TrainStep, GoesOnFromSavedStateToTheSameBits) {
  NEEDS_GPU();
  Fixture whole("hkt", false, torch::kCUDA, on_gpu(true)), resumed("hkt", false, torch::kCUDA, on_gpu(true));
  auto run = [](Fixture& f, int64_t n) { (*f.step)({f.batch(8, 48, n)}, kRate, 50 + n); };
  for (int64_t n = 0; n < 8; ++n) run(whole, n);
  torch::NoGradGuard no_grad;
  for (size_t n = 0; n < whole.optimizer->slots().size(); ++n) {
    const AdamW::Slot& from = whole.optimizer->slots()[n];
    AdamW::Slot& to = resumed.optimizer->slots()[n];
    to.parameter.copy_(from.parameter);
    to.steps = from.steps;
    to.mean = from.mean.clone();
    to.square = from.square.clone();
    EXPECT_EQ(from.steps, 8);
    EXPECT_EQ(from.steps_on_device.item<double>(), 8);
  }
  torch::AutoGradMode grad(true);
  for (int64_t n = 8; n < 16; ++n) {
    run(whole, n);
    run(resumed, n);
  }
  EXPECT_GT(resumed.step->replays(), 0);
  expect_same_bits(whole, resumed, "resumed");
}

}  // namespace
}  // namespace strata
