// Layer norm on CUDA: the checks. There is one kind of kernel.
#include "base/text.h"
#include "cuda/cuda_status.h"
#include "cuda/layer_norm_kernels.h"

namespace strata::cuda {
namespace {

Status check(const LayerNorm& n) {
  if (n.rows < 0) return invalid("rows: expected 0 or more, got ", n.rows);
  if (n.channels < 1 || n.channels > kMaxLayerNormChannels)
    return invalid("channels: expected 1 to ", kMaxLayerNormChannels, ", got ", n.channels);
  if (n.weight == nullptr || n.bias == nullptr ||
      ((n.x == nullptr || n.mean == nullptr || n.rstd == nullptr) && n.rows > 0))
    return invalid("x, weight, bias, mean, rstd: expected pointers to data, got null; all five are needed");
  return {};
}

}  // namespace

Status layer_norm_forward(const LayerNorm& n, float* y, Stream stream) {
  if (Status s = check(n); !s.ok()) return s;
  if (n.rows == 0) return {};
  if (y == nullptr) return invalid("y: expected a pointer to data, got null");
  return cuda_status(layer_norm_forward_simt(n, y, static_cast<cudaStream_t>(stream)), "layer norm forward");
}

size_t layer_norm_backward_workspace(const LayerNorm& n) { return layer_norm_backward_workspace_simt(n); }

Status layer_norm_backward(const LayerNorm& n, const LayerNormGradients& g, void* workspace, Stream stream) {
  if (Status s = check(n); !s.ok()) return s;
  if (g.dy == nullptr || g.dx == nullptr || g.dweight == nullptr || g.dbias == nullptr || workspace == nullptr)
    return invalid("dy, dx, dweight, dbias, workspace: expected pointers to data, got null; all five are needed");
  if (n.rows == 0) return invalid("rows: expected 1 or more for the gradients, got 0");
  return cuda_status(layer_norm_backward_simt(n, g, workspace, static_cast<cudaStream_t>(stream)),
                     "layer norm backward");
}

}  // namespace strata::cuda
