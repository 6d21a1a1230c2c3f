#include "torch/layer_norm.h"

#include "torch/backward_node.h"
#include "torch/op_common.h"

#ifdef STRATA_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "strata/cuda.h"
#endif

namespace strata {

using at::Tensor;

#ifdef STRATA_CUDA

namespace {

bool has_kernel(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  for (const Tensor* t : {&x, &weight, &bias}) {
    if (!t->is_cuda() || t->scalar_type() != at::kFloat) return false;
  }
  return x.numel() > 0 && x.size(-1) <= cuda::kMaxLayerNormChannels;
}

cuda::LayerNorm norm_problem(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon,
                             const Tensor& statistics) {
  cuda::LayerNorm n;
  n.channels = static_cast<int>(x.size(-1));
  n.rows = x.numel() / n.channels;
  n.epsilon = static_cast<float>(epsilon);
  n.x = x.data_ptr<float>();
  n.weight = weight.data_ptr<float>();
  n.bias = bias.data_ptr<float>();
  n.mean = statistics.data_ptr<float>();
  n.rstd = n.mean + n.rows;
  return n;
}

cuda::Stream norm_stream(const Tensor& like) { return c10::cuda::getCurrentCUDAStream(like.get_device()).stream(); }

}  // namespace

Tensor layer_norm(const Tensor& given_x, const Tensor& weight, const Tensor& bias, double epsilon) {
  if (!has_kernel(given_x, weight, bias)) return at::layer_norm(given_x, {given_x.size(-1)}, weight, bias, epsilon);
  const Tensor x = given_x.contiguous();
  Tensor y, statistics;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    const c10::cuda::CUDAGuard device(x.device());
    y = at::empty_like(x);
    statistics = at::empty({2, x.numel() / x.size(-1)}, x.options());
    throw_if_failed(
        cuda::layer_norm_forward(norm_problem(x, weight.contiguous(), bias.contiguous(), epsilon, statistics),
                                 y.data_ptr<float>(), norm_stream(x)));
  }
  attach_backward(
      "strata::layer_norm", {x, weight, bias}, {y}, /*save_outputs=*/false,
      [statistics, epsilon](const variable_list& s, const variable_list& gradients) -> variable_list {
        const Tensor &x = s[0], weight = s[1].contiguous(), bias = s[2].contiguous();
        const c10::cuda::CUDAGuard device(x.device());
        const Tensor dy = gradients[0].to(at::kFloat).contiguous();
        const Tensor dx = at::empty_like(x), dweight = at::empty_like(weight), dbias = at::empty_like(bias);
        const cuda::LayerNorm n = norm_problem(x, weight, bias, epsilon, statistics);
        const Tensor workspace =
            at::empty({static_cast<int64_t>(cuda::layer_norm_backward_workspace(n))}, x.options().dtype(at::kByte));
        throw_if_failed(cuda::layer_norm_backward(
            n, {dy.data_ptr<float>(), dx.data_ptr<float>(), dweight.data_ptr<float>(), dbias.data_ptr<float>()},
            workspace.data_ptr(), norm_stream(x)));
        return {dx, dweight, dbias};
      });
  return y;
}

#else

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, epsilon);
}

#endif

}  // namespace strata
