// Training steps by two processes of this machine, one thread each, over the loopback: what communication costs, what
// overlap saves on a slow network, and how many bytes a step sends.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "bench/measure.h"
#include "bench/report.h"
#include "model/sequence_model.h"
#include "model/system.h"
#include "train/adamw.h"
#include "train/distributed.h"
#include "train/gradient_buckets.h"
#include "train/launch.h"
#include "util/file.h"
#include "util/json.h"

namespace strata::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kOutput = "STRATA_BENCH_OUTPUT";  // the file in which rank 0 leaves what it measured
constexpr int64_t kBatch = 4, kTokens = 256, kLayers = 4, kSteps = 4;
constexpr double kReductionShare = 0.4;  // of a step whose reduction is not overlapped, on the throttled network

// A network of a given rate: a sum is there no earlier than its bytes, after those before it, would have passed.
class Throttle {
 public:
  explicit Throttle(Group& group) : group_(group) {}
  double seconds_per_byte = 0;

  GradientBuckets::SumLater sum() {
    return [this](const torch::Tensor& flat) -> std::function<void()> {
      const double seconds = seconds_per_byte * static_cast<double>(flat.nbytes());
      free_ = std::max(free_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
      return [wait = group_.sum_later(flat), there = free_] {
        wait();
        std::this_thread::sleep_until(there);
      };
    };
  }

 private:
  using Seconds = std::chrono::duration<double>;
  Group& group_;
  Clock::time_point free_{};
};

// A classifier and one batch of its work; `buckets`, if given, sums its gradients.
struct Step {
  explicit Step(uint64_t seed) {
    torch::manual_seed(1);
    ModelConfig config;
    config.attention = "hkt";
    config.model_size = 128;
    config.layers = kLayers;
    config.dropout = 0;
    ModelShape shape;
    shape.vocabulary = 257;
    shape.outputs = 10;
    shape.length = kTokens;
    model = SequenceModel(config, shape);
    optimizer = std::make_unique<AdamW>(*model, 0.01);
    torch::manual_seed(seed);
    input.tokens = torch::randint(1, 257, {kBatch, kTokens}, torch::kLong);
    input.lengths = torch::full({kBatch}, kTokens, torch::kLong);
    targets = torch::randint(0, 10, {kBatch}, torch::kLong);
  }

  void run(GradientBuckets* buckets) {
    optimizer->zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(model->forward(input), targets);
    if (buckets != nullptr) buckets->begin(torch::zeros({1}));
    loss.backward();
    if (buckets != nullptr) buckets->finish();
    optimizer->clip(1.0);
    optimizer->step(1e-4);
  }

  SequenceModel model{nullptr};
  std::unique_ptr<AdamW> optimizer;
  ModelInput input;
  torch::Tensor targets;
};

// Bytes that this process has sent on all its connections, as the kernel counts them.
double bytes_sent() {
  double sum = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    tcp_info info = {};
    socklen_t size = sizeof info;
    if (getsockopt(std::atoi(entry.path().filename().c_str()), IPPROTO_TCP, TCP_INFO, &info, &size) == 0)
      sum += static_cast<double>(info.tcpi_bytes_sent - info.tcpi_bytes_retrans);
  }
  return sum;
}

// Seconds of a step, of the slower process; both start at the same time.
double step_seconds(Group& group, Step& step, GradientBuckets* buckets) {
  group.sum(torch::zeros({1}));
  const double seconds = seconds_of([&] {
    for (int64_t i = 0; i < kSteps; ++i) step.run(buckets);
  });
  const torch::Tensor times = torch::zeros({group.size()}, torch::kDouble);
  times[group.rank()] = seconds / static_cast<double>(kSteps);
  group.sum(times);
  return times.max().item<double>();
}

Json measured_by(Group& group, int rounds) {
  Step step(static_cast<uint64_t>(group.rank()));
  Throttle free_network(group), slow_network(group);
  const std::vector<torch::Tensor> parameters = step.model->parameters();
  GradientBuckets fast(parameters, 1, free_network.sum());
  constexpr int64_t kSmall = 1 << 18, kAll = int64_t{1} << 40;
  GradientBuckets overlapped(parameters, 1, slow_network.sum(), kSmall),
      blocking(parameters, 1, slow_network.sum(), kAll);
  std::vector<double> alone, together, in_buckets, at_end;
  step_seconds(group, step, nullptr);
  step_seconds(group, step, &fast);
  for (int round = 0; round < rounds; ++round) {
    alone.push_back(step_seconds(group, step, nullptr));
    together.push_back(step_seconds(group, step, &fast));
  }
  // reduction = share * (computation + reduction)
  const double reduction = median(alone) * kReductionShare / (1 - kReductionShare);
  slow_network.seconds_per_byte = reduction / static_cast<double>(blocking.bytes());
  for (int round = 0; round < rounds; ++round) {
    in_buckets.push_back(step_seconds(group, step, &overlapped));
    at_end.push_back(step_seconds(group, step, &blocking));
  }
  const double before = bytes_sent();
  for (int64_t i = 0; i < kSteps; ++i) step.run(&fast);
  const double sent = (bytes_sent() - before) / static_cast<double>(kSteps);
  double gradients = 0;
  for (const torch::Tensor& parameter : parameters) gradients += static_cast<double>(parameter.nbytes());
  const auto size = static_cast<double>(group.size());
  return {{"alone", median(alone)},           {"together", median(together)},
          {"in_buckets", median(in_buckets)}, {"at_end", median(at_end)},
          {"reduction", reduction},           {"bytes", sent},
          {"gradient_bytes", gradients},      {"bytes_ratio", sent / (2 * (size - 1) / size * gradients)}};
}

}  // namespace

void measure_in_process(const Arguments& arguments) {
  constexpr double kTimeout = 60;
  const std::optional<Placement> place = find_placement();
  set_threads(1);
  Group group(place.value(), torch::kCPU, kTimeout);
  const Json measured = measured_by(group, arguments.rounds);
  if (group.is_writer()) write_json(std::getenv(kOutput), measured);
  group.leave();
}

std::vector<Figure> distributed_figures(const Arguments& arguments) {
  constexpr int64_t kProcesses = 2;
  const fs::path output = fs::temp_directory_path() / ("strata_bench_" + std::to_string(getpid()) + ".json");
  setenv(kOutput, output.c_str(), 1);
  launch_processes(kProcesses, {"strata", "bench", "distributed", "--rounds", std::to_string(arguments.rounds)});
  const Json m = parse_json<Json>(read_file(output));
  fs::remove(output);
  auto at = [&](const char* key) { return m.at(key).get<double>(); };
  std::printf(
      "Training steps by %ld processes, one thread each, loopback: HKT, %ld layers, 128 channels, T=%ld, batch %ld "
      "each\n"
      "milliseconds: without communication %.1f, with it %.1f; network throttled to %.1f per reduction: overlapped "
      "%.1f, one reduction at the end %.1f\n"
      "bytes sent by each process per step: %.0f, gradients %.0f\n\n",
      static_cast<long>(kProcesses), static_cast<long>(kLayers), static_cast<long>(kTokens), static_cast<long>(kBatch),
      1e3 * at("alone"), 1e3 * at("together"), 1e3 * at("reduction"), 1e3 * at("in_buckets"), 1e3 * at("at_end"),
      at("bytes"), at("gradient_bytes"));
  return {{"ddp_step_overhead_2p", at("together") / at("alone"), "<= 1.25"},
          {"ddp_overlap", at("in_buckets") / at("at_end"), "<= 0.85"},
          {"ddp_bytes_per_step", at("bytes_ratio"), "<= 1.02"}};
}

}  // namespace strata::bench
