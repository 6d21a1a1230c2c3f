// Decoding steps on a GPU: HKT's, which append the rows of a new token to a cache of bfloat16 and attend to it, beside
// reading that cache once at the rate of a copy; streaming attention's beside the launch of an empty kernel. Operators
// of torch are called one after the other, so what calls and launches cost is part of it.
#include <cstdio>

#include "bench/cuda_measure.h"
#include "bench/report.h"
#include "strata/cuda.h"
#include "torch/hkt_op.h"
#include "torch/hsa_op.h"

namespace strata::bench {
namespace {

torch::TensorOptions on_gpu(torch::ScalarType type) { return torch::TensorOptions(type).device(torch::kCUDA); }

// Microseconds of one of `count` calls in a row.
double microseconds_each(const std::function<void()>& work, int count, int rounds) {
  return 1e3 *
         milliseconds(
             [&] {
               for (int i = 0; i < count; ++i) work();
             },
             rounds) /
         count;
}

struct HktShape {
  int64_t batch, tokens, heads, key_heads, levels, head_size;
  std::string name() const {
    return c10::str("B ", batch, ", T ", tokens, ", heads ", key_heads, " of ", heads, ", L ", levels, ", d ",
                    head_size);
  }
};

// A full cache and the newest token of every sequence.
struct HktStep {
  explicit HktStep(const HktShape& s) {
    const auto type = on_gpu(torch::kBFloat16);
    for (int64_t l = 0; l < s.levels; ++l) {
      const int64_t rows = (s.tokens + (int64_t{1} << l) - 1) >> l;
      q.push_back(torch::randn({s.batch, s.heads, 1, s.head_size}, type));
      k.push_back(torch::randn({s.batch, s.key_heads, 1, s.head_size}, type));
      queries.push_back(torch::randn_like(q.back()));
      keys.push_back(torch::randn({s.batch, s.key_heads, rows, s.head_size}, type));
    }
    v = torch::randn({s.batch, s.key_heads, 1, s.head_size}, type);
    values = torch::randn({s.batch, s.key_heads, s.tokens, s.head_size}, type);
    weights = torch::softmax(torch::randn({s.heads, s.levels}, on_gpu(torch::kFloat)), -1);
    before = torch::full({s.batch}, s.tokens - 1, on_gpu(torch::kLong));
    lengths = before + 1;
  }
  double bytes() const {
    auto sum = static_cast<double>(values.nbytes());
    for (const Tensor& level : keys) sum += static_cast<double>(level.nbytes());
    return sum;
  }
  void run() const {
    hkt_append(q, k, v, queries, keys, values, before);
    hkt_decode(queries, keys, values, weights, lengths);
  }
  std::vector<Tensor> q, k, queries, keys;
  Tensor v, values, weights, before, lengths;
};

void add_hkt(std::vector<Figure>& figures, int rounds) {
  const double bytes_per_second = cuda_ceilings(rounds).bytes;
  std::printf("HKT decoding step on the GPU, microseconds\n%-46s %10s %12s %8s\n", "shape", "ours", "cache read",
              "over");
  const std::vector<HktShape> shapes = {
      {1, 16384, 32, 32, 3, 64},  {32, 16384, 32, 32, 3, 64},  // the figures
      {1, 1024, 32, 32, 3, 64},   {1, 4096, 32, 32, 3, 64},   {1, 65536, 32, 32, 3, 64},  {8, 16384, 32, 32, 3, 64},
      {32, 1024, 32, 32, 3, 64},  {32, 4096, 32, 32, 3, 64},  {256, 1024, 32, 32, 3, 64}, {1, 16384, 32, 32, 1, 64},
      {1, 16384, 32, 32, 5, 64},  {1, 16384, 32, 32, 8, 64},  {1, 16384, 16, 16, 3, 128}, {1, 16384, 32, 8, 3, 64},
      {32, 16384, 32, 32, 1, 64}, {32, 16384, 32, 32, 5, 64}, {32, 16384, 32, 32, 8, 64}, {32, 16384, 16, 16, 3, 128},
      {32, 16384, 32, 8, 3, 64},  {32, 16384, 32, 1, 3, 64},
  };
  for (size_t i = 0; i < shapes.size(); ++i) {
    const HktShape& shape = shapes[i];
    const HktStep step(shape);
    const double read = 1e6 * step.bytes() / bytes_per_second;
    const double ours = microseconds_each([&] { step.run(); }, 20, rounds);
    std::printf("%-46s %10.1f %12.1f %8.2f\n", shape.name().c_str(), ours, read, ours / read);
    if (i < 2)
      figures.push_back({c10::str("hkt_cuda_decode_step_over_cache_read_b", shape.batch),
                         ours / read,
                         i == 0 ? "<= 4" : "<= 1.6",
                         {1e-6 * ours, 0, step.bytes()}});
  }
  std::printf("\n");
}

struct StreamShape {
  int64_t batch, heads, key_heads, levels, near, head_size;
  std::string name() const {
    return c10::str("B ", batch, ", heads ", key_heads, " of ", heads, ", L ", levels, ", near ", near, ", d ",
                    head_size);
  }
};

// Mean microseconds of the 512 steps behind 65536 tokens, branching 16.
double stream_microseconds(const StreamShape& s, int rounds) {
  constexpr int64_t kBefore = 65536, kCapacity = 6, kSteps = 512;
  const auto type = on_gpu(torch::kFloat);
  const int64_t ring = 16 * s.near, width = s.levels * s.head_size;
  const Tensor q = torch::randn({s.batch, s.heads, width}, type), k = torch::randn({s.batch, s.key_heads, width}, type);
  const Tensor v = torch::randn({s.batch, s.key_heads, s.head_size}, type);
  HsaStreamState state{torch::randn({s.batch, s.key_heads, kCapacity, ring, width}, type),
                       torch::randn({s.batch, s.key_heads, kCapacity, ring, s.head_size}, type),
                       torch::zeros({s.batch, s.key_heads, kCapacity, ring}, type),
                       torch::ones({s.batch, kCapacity, ring}, type),
                       torch::full({s.batch}, kBefore, on_gpu(torch::kLong))};
  HsaStreamOptions options;
  options.near = s.near;
  if (s.levels > 1) options.level_weights = torch::full({s.heads, s.levels}, 1.0 / static_cast<double>(s.levels), type);
  return microseconds_each(
             [&] {
               state.lengths.fill_(kBefore);
               for (int64_t i = 0; i < kSteps; ++i) hsa_stream_step(q, k, v, state, options);
             },
             1, rounds) /
         kSteps;
}

void add_streams(std::vector<Figure>& figures, int rounds) {
  // Torch's current stream is the default stream as well.
  const double empty = microseconds_each([&] { TORCH_CHECK(cuda::launch_nothing(nullptr).ok()); }, 512, rounds);
  std::printf("Streaming step on the GPU behind 65536 tokens; an empty kernel's launch takes %.2f us\n%-46s %10s %8s\n",
              empty, "shape", "us", "over");
  const std::vector<StreamShape> shapes = {
      {1, 8, 8, 1, 2, 64},   {256, 8, 8, 1, 2, 64},  // the figures
      {8, 8, 8, 1, 2, 64},   {32, 8, 8, 1, 2, 64},  {1, 8, 8, 1, 1, 64},   {256, 8, 8, 1, 1, 64},  {1, 8, 8, 3, 2, 64},
      {256, 8, 8, 3, 2, 64}, {256, 8, 2, 1, 2, 64}, {1, 32, 32, 1, 2, 64}, {256, 8, 8, 1, 2, 128},
  };
  for (size_t i = 0; i < shapes.size(); ++i) {
    const double ours = stream_microseconds(shapes[i], rounds);
    std::printf("%-46s %10.2f %8.2f\n", shapes[i].name().c_str(), ours, ours / empty);
    if (i < 2)
      figures.push_back({c10::str("stream_cuda_decode_us_over_empty_launch_b", shapes[i].batch), ours / empty, "<= 6"});
  }
  std::printf("\n");
}

}  // namespace

std::vector<Figure> decode_cuda_figures(const Arguments& arguments) {
  std::vector<Figure> figures;
  add_hkt(figures, arguments.rounds);
  add_streams(figures, arguments.rounds);
  return figures;
}

}  // namespace strata::bench
