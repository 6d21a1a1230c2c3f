// The kernels on a GPU beside PyTorch's, in one process: bfloat16, 2048 channels in all heads, 16,384 tokens in all
// sequences. Times are medians of single calls between two events.
#include <torch/torch.h>

#include <cstdio>

#include "bench/cuda_measure.h"
#include "bench/report.h"
#include "strata/tree.h"
#include "torch/hsa_op.h"

namespace strata::bench {
namespace {

struct Shape {
  int64_t head_size, tokens;
  bool causal;
  int64_t heads() const { return 2048 / head_size; }
  int64_t batch() const { return 16384 / tokens; }
  std::string name() const {
    return "d" + std::to_string(head_size) + "_t" + std::to_string(tokens / 1024) + "k" + (causal ? "_causal" : "");
  }
  double flops() const { return 4.0 * batch() * heads() * tokens * tokens * head_size * (causal ? 0.5 : 1.0); }
};

struct Problem {
  Problem(const Shape& shape, int64_t levels) : causal(shape.causal) {
    for (int64_t l = 0; l < levels; ++l) {
      const int64_t rows = (shape.tokens + (int64_t{1} << l) - 1) >> l;
      q.push_back(make_input(shape.batch(), shape.heads(), rows, shape.head_size));
      k.push_back(make_input(shape.batch(), shape.heads(), rows, shape.head_size));
    }
    v = make_input(shape.batch(), shape.heads(), shape.tokens, shape.head_size);
    dout = torch::randn_like(v).detach();
    weights = torch::softmax(torch::randn({shape.heads(), levels}, torch::kCUDA), -1).detach().set_requires_grad(true);
  }
  Tensor ours(size_t levels) const {
    HktOptions options;
    options.causal = causal;
    const Tensor a = levels == q.size() ? weights : torch::ones({weights.size(0), 1}, torch::kCUDA);
    return std::get<0>(
        hkt_attention(at::TensorList(q).slice(0, levels), at::TensorList(k).slice(0, levels), v, a, options));
  }
  Tensor peer() const { return at::scaled_dot_product_attention(q[0], k[0], v, {}, 0.0, causal); }
  // HKT as attention on features side by side: what a user of PyTorch writes.
  Tensor concatenated() const {
    std::vector<Tensor> queries, keys;
    const Tensor a = weights.to(torch::kBFloat16).unsqueeze(0).unsqueeze(2);
    for (size_t l = 0; l < q.size(); ++l) {
      auto spread = [&](const Tensor& x) { return x.repeat_interleave(int64_t{1} << l, 2).slice(2, 0, q[0].size(2)); };
      queries.push_back(spread(q[l]) * a.select(3, static_cast<int64_t>(l)).unsqueeze(-1));
      keys.push_back(spread(k[l]));
    }
    const double scale = 1.0 / std::sqrt(static_cast<double>(v.size(3)));
    return at::scaled_dot_product_attention(torch::cat(queries, -1), torch::cat(keys, -1), v, {}, 0.0, causal, scale);
  }
  std::vector<Tensor> flat_inputs() const { return {q[0], k[0], v}; }
  std::vector<Tensor> inputs() const {
    std::vector<Tensor> all = q;
    all.insert(all.end(), k.begin(), k.end());
    all.insert(all.end(), {v, weights});
    return all;
  }
  std::vector<Tensor> q, k;
  Tensor v, dout, weights;
  bool causal;
};

std::function<void()> forward(const std::function<Tensor()>& output) {
  return [output] {
    torch::NoGradGuard no_grad;
    output();
  };
}

}  // namespace

namespace {

struct Times {
  double forward, both;  // milliseconds; both: forward and backward
};

Times times_of(const Problem& problem, const std::function<Tensor()>& output, const std::vector<Tensor>& inputs,
               int rounds) {
  return {milliseconds(forward(output), rounds),
          milliseconds([&] { torch::autograd::grad({output()}, inputs, {problem.dout}, std::nullopt, false, true); },
                       rounds)};
}

// All of one shape: our kernels with three levels and with one, PyTorch's flash and cuDNN's.
void add_shape(const Shape& shape, int rounds, std::vector<Figure>& figures) {
  const Problem problem(shape, 3);
  auto peer = [&] { return problem.peer(); };
  const Times ours = times_of(
                  problem, [&] { return problem.ours(3); }, problem.inputs(), rounds),
              flat = times_of(
                  problem, [&] { return problem.ours(1); }, problem.flat_inputs(), rounds);
  use(Backend::kFlash);
  const Times flash = times_of(problem, peer, problem.flat_inputs(), rounds);
  at::globalContext().setDeterministicAlgorithms(true, false);
  const double deterministic = times_of(problem, peer, problem.flat_inputs(), rounds).both;
  at::globalContext().setDeterministicAlgorithms(false, false);
  use(Backend::kCudnn);
  const Times cudnn = times_of(problem, peer, problem.flat_inputs(), rounds);
  const std::string name = "_" + shape.name();
  std::printf("%-16s %8.3f/%8.3f %8.3f/%8.3f %8.3f/%8.3f %8s/%8.3f %8.3f/%8.3f\n", shape.name().c_str(), ours.forward,
              ours.both, flat.forward, flat.both, flash.forward, flash.both, "", deterministic, cudnn.forward,
              cudnn.both);
  const bool is_short = shape.tokens == 1024;
  const AttentionWork least = hkt_work(shape.batch(), shape.heads(), shape.tokens, 3, shape.head_size, shape.causal, 2);
  const Work forward = least.work(1e-3 * ours.forward, false), both = least.work(1e-3 * ours.both, true);
  figures.push_back({"hkt_cuda_fwd_l3_over_flash" + name, ours.forward / flash.forward, "<= 1.31"});
  figures.push_back({"hkt_cuda_fwdbwd_l3_over_flash" + name, ours.both / deterministic, "<= 1.31"});
  figures.push_back({"hkt_cuda_fwdbwd_l3_over_flash_default" + name, ours.both / flash.both, "<= 1.5"});
  figures.push_back({"hkt_cuda_fwd_l3_over_l1" + name, ours.forward / flat.forward, "<= 1.31"});
  figures.push_back({"hkt_cuda_fwdbwd_l3_over_l1" + name, ours.both / flat.both, "<= 1.35"});
  figures.push_back(
      {"hkt_cuda_fwd_l3_over_cudnn" + name, ours.forward / cudnn.forward, is_short ? "<= 1.55" : "<= 1.40", forward});
  figures.push_back({"hkt_cuda_fwdbwd_l3_over_cudnn" + name, ours.both / cudnn.both,
                     shape.head_size == 64 ? (is_short ? "<= 1.60" : "<= 1.45") : (is_short ? "<= 1.90" : "<= 1.75"),
                     both});
  if (shape.head_size != 64 || shape.tokens != 16384 || shape.causal) return;
  use(Backend::kFlash);  // cuDNN and flash take keys of 192 channels only with values as wide, or not at all
  at::globalContext().setSDPUseCuDNN(true);
  at::globalContext().setSDPUseMemEfficient(true);
  const Times concatenated = times_of(
      problem, [&] { return problem.concatenated(); }, problem.inputs(), rounds);
  figures.push_back({"hkt_cuda_concat_over_ours_fwdbwd" + name, concatenated.both / ours.both, ">= 2.2"});
}

// One more level, and two more.
void add_levels(int64_t head_size, int rounds, std::vector<Figure>& figures) {
  const Shape shape{head_size, 16384, false};
  auto times = [&](int64_t levels) {
    const Problem problem(shape, levels);
    return times_of(
        problem, [&] { return problem.ours(levels); }, problem.inputs(), rounds);
  };
  const Times three = times(3);
  for (const int64_t levels : {2, 4, 5}) {
    const Times t = times(levels);
    std::printf("%-16s %8.3f/%8.3f with %ld levels\n", shape.name().c_str(), t.forward, t.both,
                static_cast<long>(levels));
    const AttentionWork least = hkt_work(shape.batch(), shape.heads(), shape.tokens, levels, head_size, false, 2);
    figures.push_back({"hkt_cuda_fwdbwd_l" + std::to_string(levels) + "_over_l3_" + shape.name(), t.both / three.both,
                       levels > 3 ? "<= 1.15" : "", least.work(1e-3 * t.both, true)});
  }
}

}  // namespace

std::vector<Figure> hkt_cuda_figures(const Arguments& arguments) {
  std::vector<Figure> figures;
  std::printf("HKT on the GPU, milliseconds, forward / forward and backward (ours deterministic)\n");
  std::printf("%-16s %17s %17s %17s %17s %17s\n", "shape", "ours L=3", "ours L=1", "flash", "flash det.", "cuDNN");
  for (const int64_t head_size : {64, 128}) {
    for (const int64_t tokens : {1024, 4096, 16384}) {
      for (const bool causal : {false, true}) add_shape({head_size, tokens, causal}, arguments.rounds, figures);
    }
  }
  for (const int64_t head_size : {64, 128}) add_levels(head_size, arguments.rounds, figures);
  std::printf("\n");
  return figures;
}

namespace {

// HSA on a balanced tree, one sequence of 32 heads of 64.
Times tree_times(const Tree& tree, const std::vector<Tensor>& qkv, int rounds) {
  const Tensor encoded = encode_tree(tree), dout = torch::randn_like(qkv[2]).detach();
  auto output = [&] { return std::get<0>(hsa_attention(qkv[0], qkv[1], qkv[2], {encoded})); };
  return {milliseconds(forward(output), rounds),
          milliseconds([&] { torch::autograd::grad({output()}, qkv, {dout}); }, rounds)};
}

}  // namespace

std::vector<Figure> hsa_cuda_figures(const Arguments& arguments) {
  std::vector<Figure> figures;
  constexpr int64_t kHeads = 32, kHeadSize = 64;
  const int rounds = arguments.rounds;
  std::printf("HSA on the GPU, d = 64, 32 heads, one sequence, milliseconds\n");
  std::printf("%10s %10s %12s %14s %12s %12s\n", "tokens", "families", "ours", "ours fwd+bwd", "cuDNN flat", "copy");
  for (const int64_t tokens : {16384, 65536}) {
    const std::string name = "_t" + std::to_string(tokens / 1024) + "k";
    std::vector<Tensor> qkv;
    for (int i = 0; i < 3; ++i) qkv.push_back(make_input(1, kHeads, tokens, kHeadSize));
    use(Backend::kCudnn);
    const double flat =
        milliseconds(forward([&] { return at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]); }), rounds);
    const double copy = copy_milliseconds({qkv[0], qkv[1], qkv[2], qkv[2]}, rounds);
    Times of16{};
    for (const int64_t family : {16, 8, 20, 32, 64, 128}) {
      Tree tree;
      TORCH_CHECK(balanced_tree(tokens, family, Domain::kSet, &tree).ok());
      const Times t = tree_times(tree, qkv, rounds);
      std::printf("%10ld %10ld %12.3f %14.3f %12.3f %12.3f\n", static_cast<long>(tokens), static_cast<long>(family),
                  t.forward, t.both, flat, copy);
      const AttentionWork least = tree_work(tree, kHeads, 1, kHeadSize, 2);
      const Work forward_work = least.work(1e-3 * t.forward, false), both = least.work(1e-3 * t.both, true);
      if (family == 16) {
        of16 = t;
        figures.push_back({"hsa_cuda_cudnn_over_ours_fwd" + name, flat / t.forward, tokens == 16384 ? ">= 20" : ">= 80",
                           forward_work});
        if (tokens == 65536) figures.push_back({"hsa_cuda_fwd_over_copy" + name, t.forward / copy, "<= 1.35"});
      } else if (tokens == 65536) {
        const char* const bar = family == 32 ? "<= 3" : family == 64 ? "<= 6" : "";
        const std::string ratio = "hsa_cuda_b" + std::to_string(family) + "_over_b16_";
        figures.push_back({ratio + "fwd" + name, t.forward / of16.forward, bar, forward_work});
        figures.push_back({ratio + "fwdbwd" + name, t.both / of16.both, bar, both});
      }
    }
  }
  std::printf("\n");
  return figures;
}

}  // namespace strata::bench
