// The parts of training by several processes that need one only: buckets, dropout by rows, parts of batches, facts.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "data/loader.h"
#include "model/row_dropout.h"
#include "train/distributed.h"
#include "train/gradient_buckets.h"

namespace strata {
namespace {

using torch::Tensor;

// Two layers and a parameter that no step uses.
struct Net {
  Net() {
    torch::manual_seed(3);
    for (const auto& shape : std::vector<std::vector<int64_t>>{{4, 5}, {5}, {5, 3}, {7}})
      parameters.push_back(torch::randn(shape, torch::kDouble).set_requires_grad(true));
  }
  Tensor loss(const Tensor& x) const {
    return torch::tanh(x.matmul(parameters[0]) + parameters[1]).matmul(parameters[2]).square().sum();
  }
  std::vector<Tensor> parameters;
};

// Sums that double, as if another process had the same.
GradientBuckets::SumLater doubled(std::vector<int64_t>& started) {
  return [&started](const Tensor& flat) {
    started.push_back(flat.numel());
    return [flat] { flat.mul_(2); };
  };
}

TEST(GradientBuckets, SumsInAFixedOrderWhileTheBackwardRuns) {
  const Net net;
  const Tensor x = torch::randn({2, 4}, torch::kDouble);
  const std::vector<Tensor> expected =
      torch::autograd::grad({net.loss(x)}, {net.parameters[0], net.parameters[1], net.parameters[2]});
  std::vector<int64_t> started;
  GradientBuckets buckets(net.parameters, 2, doubled(started), /*bucket_bytes=*/1);
  for (int step = 0; step < 3; ++step) {
    for (const Tensor& parameter : net.parameters) parameter.mutable_grad() = Tensor();
    net.loss(x).backward();  // of an accumulated batch: nothing is summed
    started.clear();
    buckets.begin(torch::tensor({3.0, 0.5}, torch::kDouble));
    net.loss(x).backward();
    const size_t during = started.size();
    const Tensor extra = buckets.finish();
    // Bucket 0 is the unused parameter's, which is known to be so at the end only: nothing may overtake it.
    EXPECT_EQ(during, 0U);
    EXPECT_EQ(started, (std::vector<int64_t>{7, 15, 5, 20 + 2 + 4}));
    EXPECT_EQ(extra[0].item<double>(), 6.0);
    EXPECT_EQ(extra[1].item<double>(), 1.0);
    for (int p = 0; p < 3; ++p) EXPECT_TRUE(torch::allclose(net.parameters[p].grad(), 4 * expected[p], 1e-12));
    EXPECT_FALSE(net.parameters[3].grad().defined());
  }
}

TEST(GradientBuckets, StartsBeforeTheBackwardEnds) {
  Net net;
  net.parameters.pop_back();
  std::vector<int64_t> started;
  GradientBuckets buckets(net.parameters, 1, doubled(started), 1);
  buckets.begin(torch::zeros({1}, torch::kDouble));
  // The gradient of parameters[0] comes last: by then both others are on their way.
  net.parameters[0].register_hook([&](const Tensor&) { EXPECT_EQ(started.size(), 2U); });
  net.loss(torch::randn({2, 4}, torch::kDouble)).backward();
  EXPECT_EQ(started.size(), 3U);
  buckets.finish();
}

TEST(GradientBuckets, AProcessWithoutRowsAddsZeros) {
  const Net net;
  std::vector<int64_t> started;
  GradientBuckets buckets(net.parameters, 1, doubled(started));
  buckets.begin(torch::ones({1}, torch::kDouble));
  EXPECT_EQ(buckets.finish().item<double>(), 2.0);
  EXPECT_EQ(started.size(), 1U);
  for (const Tensor& parameter : net.parameters) EXPECT_FALSE(parameter.grad().defined());
}

TEST(RowDropout, BelongsToTheRow) {
  const Tensor x = torch::rand({3, 50, 8}) + 1, keys = torch::tensor({11L, -5L, 900000000000L});
  const Tensor whole = row_dropout(x, 0.25, keys, 4);
  EXPECT_TRUE(torch::equal(whole, x * row_dropout_factors(x, 0.25, keys, 4)));  // the operators a GPU uses
  // In another batch, beside other rows, with less padding.
  const Tensor part = row_dropout(x.narrow(0, 1, 2).narrow(1, 0, 20).contiguous(), 0.25, keys.narrow(0, 1, 2), 4);
  EXPECT_TRUE(torch::equal(part, whole.narrow(0, 1, 2).narrow(1, 0, 20)));
  EXPECT_FALSE(torch::equal(whole, row_dropout(x, 0.25, keys, 5)));
  const double dropped = whole.eq(0).to(torch::kDouble).mean().item<double>();
  EXPECT_NEAR(dropped, 0.25, 0.04);  // 1,200 elements
  EXPECT_TRUE(torch::allclose(whole.masked_select(whole.ne(0)), (x / 0.75).masked_select(whole.ne(0))));
}

TEST(Loader, PartsTogetherAreTheBatch) {
  Dataset data;
  for (int64_t row = 0; row < 10; ++row) {
    const std::vector<Token> tokens(static_cast<size_t>(1 + row % 4), static_cast<Token>(row + 1));
    data.add_row(tokens, static_cast<int32_t>(row), 100);
  }
  LoaderOptions options;
  options.batch = 8;
  options.order = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
  for (int64_t index = 0; index < 2; ++index) {
    const Batch whole = make_batch(data, options, index);
    EXPECT_EQ(whole.all_targets, whole.rows);
    EXPECT_EQ(whole.all_real_tokens, whole.real_tokens);
    for (const int64_t parts : {2, 3, 7}) {  // 7 parts of the 2 rows of the last batch: most have none
      std::vector<int64_t> targets;
      for (int64_t part = 0; part < parts; ++part) {
        LoaderOptions mine = options;
        mine.part = part;
        mine.parts = parts;
        const Batch batch = make_batch(data, mine, index);
        EXPECT_EQ(batch.first_row, index * 8 + static_cast<int64_t>(targets.size()));
        EXPECT_EQ(batch.all_targets, whole.rows);
        EXPECT_EQ(batch.all_real_tokens, whole.real_tokens);
        targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
      }
      EXPECT_EQ(targets, whole.targets);
    }
  }
}

TEST(Group, NamesTheDifference) {
  const Json facts = {{"versions", {{"strata", "1"}}}, {"options", {{"batch", 32}, {"clip", 1.0}}}};
  Json other = facts;
  EXPECT_EQ(difference_of(facts, other, 3), "");
  other["options"]["clip"] = 2.0;
  EXPECT_EQ(difference_of(facts, other, 3),
            "the ranks disagree about options: clip is 1.0 on rank 0 and 2.0 on rank 3");
  other = facts;
  other["versions"]["torch"] = "2";
  EXPECT_NE(difference_of(facts, other, 3).find("versions: rank 3 has more of it"), std::string::npos);
}

// Rank 0 hosts the store and is stopped when the run ends: the other must not wait for it without end.
TEST(Group, LeavesAHostThatWasStopped) {
  Placement place;
  place.size = 2;
  place.port = 20000 + getpid() % 20000;
  const pid_t host = fork();
  if (host == 0) {
    const Group group(place, torch::kCPU, 30);
    raise(SIGSTOP);
    _exit(0);
  }
  place.rank = 1;
  std::string said;
  try {
    Group group(place, torch::kCPU, 3);
    int status = 0;
    ASSERT_EQ(waitpid(host, &status, WUNTRACED), host);
    ASSERT_TRUE(WIFSTOPPED(status));
    group.leave();
  } catch (const Error& error) {
    said = error.what();
  }
  kill(host, SIGKILL);
  waitpid(host, nullptr, 0);
  if (said.find("need Gloo") != std::string::npos) GTEST_SKIP() << said;
  EXPECT_NE(said.find("rank 0, which hosts the store at 127.0.0.1"), std::string::npos) << said;
}

}  // namespace
}  // namespace strata
