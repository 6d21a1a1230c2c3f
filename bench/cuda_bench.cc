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

std::vector<Figure> hkt_cuda_figures(const Arguments& arguments) {
  std::vector<Figure> figures;
  std::printf("HKT on the GPU, milliseconds, forward / forward and backward (ours deterministic)\n");
  std::printf("%-16s %17s %17s %17s %17s %17s %9s\n", "shape", "ours L=3", "ours L=1", "flash", "flash det.", "cuDNN",
              "TFLOP/s");
  for (const int64_t head_size : {64, 128}) {
    for (const int64_t tokens : {1024, 4096, 16384}) {
      for (const bool causal : {false, true}) {
        const Shape shape{head_size, tokens, causal};
        const Problem problem(shape, 3);
        auto both = [&](const std::function<Tensor()>& output, const std::vector<Tensor>& inputs) {
          return std::function<void()>([&problem, output, inputs] {
            torch::autograd::grad({output()}, inputs, {problem.dout}, std::nullopt, false, true);
          });
        };
        auto peer = [&] { return problem.peer(); };
        const int rounds = arguments.rounds;
        const double ours = milliseconds(forward([&] { return problem.ours(3); }), rounds);
        const double ours_both = milliseconds(both([&] { return problem.ours(3); }, problem.inputs()), rounds);
        const double flat = milliseconds(forward([&] { return problem.ours(1); }), rounds);
        const double flat_both = milliseconds(both([&] { return problem.ours(1); }, problem.flat_inputs()), rounds);
        use(Backend::kFlash);
        const double flash = milliseconds(forward(peer), rounds);
        const double flash_both = milliseconds(both(peer, problem.flat_inputs()), rounds);
        at::globalContext().setDeterministicAlgorithms(true, false);
        const double deterministic = milliseconds(both(peer, problem.flat_inputs()), rounds);
        at::globalContext().setDeterministicAlgorithms(false, false);
        use(Backend::kCudnn);
        const double cudnn = milliseconds(forward(peer), rounds);
        const double cudnn_both = milliseconds(both(peer, problem.flat_inputs()), rounds);
        std::printf("%-16s %8.3f/%8.3f %8.3f/%8.3f %8.3f/%8.3f %8s/%8.3f %8.3f/%8.3f %9.0f\n", shape.name().c_str(),
                    ours, ours_both, flat, flat_both, flash, flash_both, "", deterministic, cudnn, cudnn_both,
                    shape.flops() * 1.15625 / ours / 1e9);
        const std::string name = "_" + shape.name();
        figures.push_back({"hkt_cuda_fwd_l3_over_flash" + name, ours / flash, "<= 1.31"});
        figures.push_back({"hkt_cuda_fwdbwd_l3_over_flash" + name, ours_both / deterministic, "<= 1.31"});
        figures.push_back({"hkt_cuda_fwdbwd_l3_over_flash_default" + name, ours_both / flash_both, "<= 1.5"});
        figures.push_back({"hkt_cuda_fwd_l3_over_l1" + name, ours / flat, "<= 1.31"});
        figures.push_back({"hkt_cuda_fwd_l3_over_cudnn" + name, ours / cudnn, "aim 1.31"});
        figures.push_back({"hkt_cuda_fwdbwd_l3_over_cudnn" + name, ours_both / cudnn_both, "aim 1.31"});
        if (head_size == 64 && tokens == 16384 && !causal) {
          use(Backend::kFlash);  // cuDNN and flash take keys of 192 channels only with values as wide, or not at all
          at::globalContext().setSDPUseCuDNN(true);
          at::globalContext().setSDPUseMemEfficient(true);
          const double side_by_side =
              milliseconds(both([&] { return problem.concatenated(); }, problem.inputs()), rounds);
          figures.push_back({"hkt_cuda_concat_over_ours_fwdbwd" + name, side_by_side / ours_both, ">= 2.5"});
        }
      }
    }
  }
  std::printf("\n");
  return figures;
}

std::vector<Figure> hsa_cuda_figures(const Arguments& arguments) {
  std::vector<Figure> figures;
  torch::NoGradGuard no_grad;
  constexpr int64_t kHeads = 32, kHeadSize = 64;
  std::printf("HSA on the GPU, b = 16, d = 64, 32 heads, one sequence, milliseconds\n");
  std::printf("%10s %12s %12s %12s %14s\n", "tokens", "ours", "cuDNN flat", "copy", "ours fwd+bwd");
  for (const int64_t tokens : {16384, 65536}) {
    const Tensor q = make_input(1, kHeads, tokens, kHeadSize), k = make_input(1, kHeads, tokens, kHeadSize),
                 v = make_input(1, kHeads, tokens, kHeadSize);
    Tree tree;
    TORCH_CHECK(balanced_tree(tokens, 16, Domain::kSet, &tree).ok());
    const Tensor encoded = encode_tree(tree);
    const double ours = milliseconds([&] { hsa_attention(q, k, v, {encoded}); }, arguments.rounds);
    use(Backend::kCudnn);
    const double flat = milliseconds([&] { at::scaled_dot_product_attention(q, k, v); }, arguments.rounds);
    const double copy = copy_milliseconds({q, k, v, v}, arguments.rounds);
    double both = 0;
    {
      torch::AutoGradMode with_grad(true);
      const Tensor dout = torch::randn_like(v);
      both = milliseconds(
          [&] {
            torch::autograd::grad({std::get<0>(hsa_attention(q, k, v, {encoded}))}, {q, k, v}, {dout});
          },
          arguments.rounds);
    }
    std::printf("%10ld %12.3f %12.3f %12.3f %14.3f\n", static_cast<long>(tokens), ours, flat, copy, both);
    const std::string name = "_t" + std::to_string(tokens / 1024) + "k";
    figures.push_back({"hsa_cuda_cudnn_over_ours_fwd" + name, flat / ours, tokens == 16384 ? ">= 20" : ">= 80"});
    if (tokens == 65536) figures.push_back({"hsa_cuda_fwd_over_copy" + name, ours / copy, "<= 2"});
  }
  std::printf("\n");
  return figures;
}

}  // namespace strata::bench
