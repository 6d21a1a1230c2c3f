// What each argument of the operators costs when it is used: its time over that of the same attention without it, in
// one run, forward and with the backward pass.
#include <cstdio>

#include "bench/measure.h"
#include "bench/report.h"
#include "torch/hsa_op.h"
#ifdef STRATA_CUDA
#include "bench/cuda_measure.h"
#endif

namespace strata::bench {
namespace {

using torch::Tensor;

// Causal attention of several sequences, token-major in memory, as models have it.
struct Inputs {
  int64_t batch, heads, key_heads, tokens, levels;
  torch::TensorOptions type;
  std::vector<Tensor> q, k;
  Tensor v, weights;

  Inputs(int64_t batch_, int64_t heads_, int64_t key_heads_, int64_t tokens_, int64_t levels_,
         torch::TensorOptions type_)
      : batch(batch_), heads(heads_), key_heads(key_heads_), tokens(tokens_), levels(levels_), type(type_) {
    for (int64_t l = 0; l < levels; ++l) {
      const int64_t rows = (tokens + (int64_t{1} << l) - 1) >> l;
      q.push_back(make(heads, rows));
      k.push_back(make(key_heads, rows));
    }
    v = make(key_heads, tokens);
    weights = torch::full({heads, levels}, 1.0 / static_cast<double>(levels), type.dtype(torch::kFloat));
  }
  // The same sequences one behind the other: their tokens and levels divide, so that no row is left over.
  Inputs packed() const {
    Inputs one = *this;
    auto join = [&](const Tensor& x) {
      return x.detach().transpose(1, 2).reshape({1, -1, x.size(1), x.size(3)}).transpose(1, 2);
    };
    for (int64_t l = 0; l < levels; ++l) {
      const int64_t rows = packed_rows(batch * tokens, batch, static_cast<int>(l));
      for (std::vector<Tensor>* list : {&one.q, &one.k}) {
        const Tensor joined = join((*list)[l]);
        (*list)[l] = torch::constant_pad_nd(joined, {0, 0, 0, rows - joined.size(2)}).requires_grad_();
      }
    }
    one.v = join(v).requires_grad_();
    return one;
  }
  Tensor cu_seqlens() const { return torch::arange(batch + 1, type.dtype(torch::kInt)) * tokens; }
  std::vector<Tensor> all() const {
    std::vector<Tensor> inputs = q;
    inputs.insert(inputs.end(), k.begin(), k.end());
    inputs.push_back(v);
    return inputs;
  }

 private:
  Tensor make(int64_t head_count, int64_t rows) const {
    return torch::randn({batch, rows, head_count, 64}, type).transpose(1, 2).detach().requires_grad_();
  }
};

struct Case {
  std::string name;
  Inputs inputs;
  std::function<Tensor(const Inputs&)> run;
};

Case hkt_case(const std::string& name, const Inputs& inputs, const std::function<void(HktOptions&)>& change) {
  HktOptions options;
  options.causal = true;
  change(options);
  return {name, inputs,
          [options](const Inputs& in) { return std::get<0>(hkt_attention(in.q, in.k, in.v, in.weights, options)); }};
}
Case stream_case(const std::string& name, const Inputs& inputs, const std::function<void(HsaStreamOptions&)>& change) {
  HsaStreamOptions options;
  options.near = 2;
  change(options);
  return {name, inputs, [options](const Inputs& in) {
            HsaStreamOptions own = options;
            own.level_weights = in.weights;
            return std::get<0>(hsa_stream_attention(in.q, in.k, in.v, own));
          }};
}

// The first case is what the others are compared with.
std::vector<Case> hkt_cases(const Inputs& in) {
  const int64_t window = in.tokens / 8;
  auto none = [](HktOptions&) {};
  const Tensor state = torch::tensor({7, 1}, in.type.dtype(torch::kLong));
  return {
      hkt_case("none", in, none),
      hkt_case("grouped_heads", Inputs(in.batch, in.heads, in.heads / 4, in.tokens, in.levels, in.type), none),
      hkt_case("window", in, [&](HktOptions& o) { o.window_left = window; }),
      hkt_case("packed", in.packed(), [&](HktOptions& o) { o.cu_seqlens = in.cu_seqlens(), o.max_seqlen = in.tokens; }),
      hkt_case("cross", in,
               [&](HktOptions& o) { o.key_lengths = torch::full({in.batch}, in.tokens, in.type.dtype(torch::kLong)); }),
      hkt_case("alibi", in,
               [&](HktOptions& o) {
                 o.slopes = torch::exp2(-torch::arange(1, in.heads + 1, in.type.dtype(torch::kFloat)) / 4);
               }),
      hkt_case("bias", in,
               [&](HktOptions& o) {
                 o.bias = torch::zeros({in.tokens, in.tokens}, in.type);
               }),
      hkt_case("dropout", in, [&](HktOptions& o) { o.dropout = 0.1, o.dropout_state = state; }),
  };
}
std::vector<Case> stream_cases(const Inputs& in) {
  const Tensor state = torch::tensor({7, 1}, in.type.dtype(torch::kLong));
  return {
      stream_case("none", in, [](HsaStreamOptions&) {}),
      stream_case("packed", in.packed(),
                  [&](HsaStreamOptions& o) { o.cu_seqlens = in.cu_seqlens(), o.max_seqlen = in.tokens; }),
      stream_case("dropout", in, [&](HsaStreamOptions& o) { o.dropout = 0.1, o.dropout_state = state; }),
  };
}

// Seconds of each contender, by name.
using Timer = std::function<std::map<std::string, double>(const Contenders&)>;

void add_cases(const std::string& prefix, const std::vector<Case>& cases, const Timer& time,
               std::vector<Figure>& figures) {
  Contenders contenders;
  for (const Case& one : cases) {
    const Tensor dout = torch::randn_like(one.run(one.inputs)).detach();
    contenders.emplace_back("fwd_" + one.name, [&one] {
      torch::NoGradGuard no_grad;
      one.run(one.inputs);
    });
    contenders.emplace_back("fwdbwd_" + one.name,
                            [&one, dout] { torch::autograd::grad({one.run(one.inputs)}, one.inputs.all(), {dout}); });
  }
  std::map<std::string, double> seconds = time(contenders);
  for (const Case& one : cases) {
    std::printf("%-14s %10.3f %10.3f\n", one.name.c_str(), 1e3 * seconds["fwd_" + one.name],
                1e3 * seconds["fwdbwd_" + one.name]);
    if (one.name == "none") continue;
    for (const std::string kind : {"fwd_", "fwdbwd_"})
      figures.push_back(
          {prefix + kind + one.name + "_over_none", seconds[kind + one.name] / seconds[kind + "none"], ""});
  }
  std::printf("\n");
}

std::vector<Figure> figures_of(const std::string& device, const Inputs& hkt, const Inputs& stream, const Timer& time) {
  std::vector<Figure> figures;
  auto head = [&](const char* what, const Inputs& in) {
    std::printf("%s, causal, %ld x %ld heads of 64 x %ld tokens, %ld levels; milliseconds\n", what,
                static_cast<long>(in.batch), static_cast<long>(in.heads), static_cast<long>(in.tokens),
                static_cast<long>(in.levels));
    std::printf("%-14s %10s %10s\n", "argument", "forward", "both");
  };
  head("HKT", hkt);
  add_cases("arguments_" + device + "_hkt_", hkt_cases(hkt), time, figures);
  head("Streaming, near 2", stream);
  add_cases("arguments_" + device + "_stream_", stream_cases(stream), time, figures);
  return figures;
}

}  // namespace

std::vector<Figure> argument_figures(const Arguments& arguments) {
  const torch::TensorOptions type(torch::kFloat);
  return figures_of("cpu", Inputs(2, 8, 8, 1024, 3, type), Inputs(2, 8, 8, 4096, 1, type),
                    [&](const Contenders& contenders) { return race(contenders, arguments.rounds); });
}

#ifdef STRATA_CUDA
std::vector<Figure> argument_cuda_figures(const Arguments& arguments) {
  const torch::TensorOptions type = torch::TensorOptions(torch::kBFloat16).device(torch::kCUDA);
  return figures_of("cuda", Inputs(4, 32, 32, 4096, 3, type), Inputs(4, 32, 32, 16384, 1, type),
                    [&](const Contenders& contenders) {
                      std::map<std::string, double> seconds;
                      for (const auto& [name, work] : contenders)
                        seconds[name] = 1e-3 * milliseconds(work, arguments.rounds);
                      return seconds;
                    });
}
#endif

}  // namespace strata::bench
