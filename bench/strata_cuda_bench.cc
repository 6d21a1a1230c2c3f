// Strata attention on a GPU beside cuDNN's flat attention and copies, in one process: bfloat16, 2048 channels in all
// heads, one sequence.
#include <torch/torch.h>

#include <cstdio>
#include <map>

#include "bench/cuda_measure.h"
#include "bench/report.h"
#include "strata/tree.h"
#include "torch/hsa_op.h"

namespace strata::bench {
namespace {

constexpr int64_t kChannels = 2048;

struct Shape {
  int64_t tokens, head_size, levels, branching, near;
  bool both_sides = false;
  std::string name() const {
    return "T " + std::to_string(tokens) + ", d " + std::to_string(head_size) + ", L " + std::to_string(levels) +
           ", b " + std::to_string(branching) + (near > 0 ? ", near " + std::to_string(near) : "") +
           (both_sides ? ", both sides" : "");
  }
};

struct Inputs {
  explicit Inputs(const Shape& shape) {
    const int64_t heads = kChannels / shape.head_size;
    for (int64_t l = 0; l < shape.levels; ++l) {
      const int64_t rows = (shape.tokens + (int64_t{1} << l) - 1) >> l;
      q.push_back(make_input(1, heads, rows, shape.head_size));
      k.push_back(make_input(1, heads, rows, shape.head_size));
    }
    v = make_input(1, heads, shape.tokens, shape.head_size);
    dout = torch::randn_like(v).detach();
    if (shape.levels > 1)
      weights = torch::softmax(torch::randn({heads, shape.levels}, torch::kCUDA), -1).detach().set_requires_grad(true);
  }
  std::vector<Tensor> all() const {
    std::vector<Tensor> list = q;
    list.insert(list.end(), k.begin(), k.end());
    list.push_back(v);
    if (weights.defined()) list.push_back(weights);
    return list;
  }
  c10::optional<Tensor> level_weights() const {
    return weights.defined() ? c10::optional<Tensor>(weights) : c10::nullopt;
  }
  std::vector<Tensor> q, k;
  Tensor v, dout, weights;
};

struct Times {
  double forward, both;  // milliseconds; both: forward and backward
};
Times times_of(const Inputs& inputs, const std::vector<Tensor>& leaves, int rounds,
               const std::function<Tensor()>& output) {
  const double forward = milliseconds(
      [&] {
        torch::NoGradGuard no_grad;
        output();
      },
      rounds);
  const double both = milliseconds([&] { torch::autograd::grad({output()}, leaves, {inputs.dout}); }, rounds);
  return {forward, both};
}

Times tree_times(const Shape& shape, const Inputs& inputs, int rounds) {
  Tree tree;
  TORCH_CHECK(balanced_tree(shape.tokens, shape.branching, Domain::kSet, &tree).ok());
  const Tensor encoded = encode_tree(tree);
  HsaOptions options;
  options.level_weights = inputs.level_weights();
  return times_of(inputs, inputs.all(), rounds,
                  [&] { return std::get<0>(hsa_attention(inputs.q, inputs.k, inputs.v, {encoded}, options)); });
}

Times stream_times(const Shape& shape, const Inputs& inputs, int rounds) {
  HsaStreamOptions options;
  options.branching = shape.branching, options.near = shape.near, options.both_sides = shape.both_sides;
  options.level_weights = inputs.level_weights();
  return times_of(inputs, inputs.all(), rounds,
                  [&] { return std::get<0>(hsa_stream_attention(inputs.q, inputs.k, inputs.v, options)); });
}

void add_trees(std::vector<Figure>& figures, int rounds) {
  std::printf("Tree form on the GPU, milliseconds\n%-40s %10s %12s %10s\n", "shape", "forward", "fwd and bwd", "copy");
  for (const Shape& shape :
       {Shape{65536, 64, 1, 16, 0}, Shape{65536, 64, 3, 16, 0}, Shape{65536, 128, 3, 16, 0}, Shape{65536, 64, 3, 8, 0},
        Shape{65536, 64, 5, 16, 0}, Shape{65536, 64, 3, 32, 0}, Shape{65536, 64, 3, 64, 0}}) {
    const Inputs inputs(shape);
    const Times t = tree_times(shape, inputs, rounds);
    std::vector<Tensor> arrays = inputs.q;
    arrays.insert(arrays.end(), inputs.k.begin(), inputs.k.end());
    arrays.insert(arrays.end(), {inputs.v, inputs.v});  // the output is as large
    const double copy = copy_milliseconds(arrays, rounds);
    std::printf("%-40s %10.3f %12.3f %10.3f\n", shape.name().c_str(), t.forward, t.both, copy);
    if (shape.tokens == 65536 && shape.head_size == 64 && shape.levels == 3 && shape.branching == 16) {
      Tree tree;
      TORCH_CHECK(balanced_tree(shape.tokens, shape.branching, Domain::kSet, &tree).ok());
      figures.push_back({"strata_cuda_tree_fwd_l3_over_copy_t64k", t.forward / copy, "<= 2",
                         tree_work(tree, 32, 3, 64, 2).work(1e-3 * t.forward, false)});
    }
  }
  std::printf("\n");
}

void add_streams(std::vector<Figure>& figures, int rounds) {
  std::map<int64_t, double> ours;  // near 2, by tokens
  std::printf("Streaming form on the GPU, milliseconds\n%-40s %10s %12s %12s %14s\n", "shape", "forward", "fwd and bwd",
              "cuDNN flat", "its fwd and bwd");
  for (const Shape& shape :
       {Shape{16384, 64, 1, 16, 2}, Shape{65536, 64, 1, 16, 2}, Shape{16384, 64, 1, 16, 1}, Shape{65536, 64, 1, 16, 1},
        Shape{16384, 64, 3, 16, 2}, Shape{65536, 64, 3, 16, 2}, Shape{16384, 128, 1, 16, 2}, Shape{16384, 64, 1, 8, 2},
        Shape{16384, 64, 1, 32, 2}, Shape{16384, 64, 1, 64, 2}, Shape{16384, 64, 3, 16, 2, true}}) {
    const Inputs inputs(shape);
    const Times t = stream_times(shape, inputs, rounds);
    std::printf("%-40s %10.3f %12.3f", shape.name().c_str(), t.forward, t.both);
    if (shape.head_size == 64 && shape.levels == 1 && shape.branching == 16 && shape.near == 2) {
      use(Backend::kCudnn);
      const Times flat = times_of(inputs, inputs.all(), rounds, [&] {
        return at::scaled_dot_product_attention(inputs.q[0], inputs.k[0], inputs.v, {}, 0.0, true);
      });
      std::printf(" %12.3f %14.3f", flat.forward, flat.both);
      ours[shape.tokens] = t.both;
      figures.push_back(
          {"strata_cuda_stream_near2_cudnn_over_ours_fwdbwd_t" + std::to_string(shape.tokens / 1024) + "k",
           flat.both / t.both, shape.tokens == 16384 ? ">= 5" : ">= 20",
           stream_work(shape.tokens, 16, 2, 32, 1, 64, 2).work(1e-3 * t.both, true)});
    }
    std::printf("\n");
  }
  figures.push_back({"strata_cuda_stream_fwdbwd_ms_ratio_t64k_over_t16k", ours.at(65536) / ours.at(16384), "<= 4.6"});
  std::printf("\n");
}

}  // namespace

std::vector<Figure> strata_cuda_figures(const Arguments& arguments) {
  std::vector<Figure> figures;
  add_trees(figures, arguments.rounds);
  add_streams(figures, arguments.rounds);
  return figures;
}

}  // namespace strata::bench
