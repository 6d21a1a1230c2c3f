// Whole pyramids on CUDA: the checks. There is one kind of kernel.
#include "base/text.h"
#include "cuda/cuda_status.h"
#include "cuda/pyramid_kernels.h"
#include "cuda/storage.h"
#include "strata/cuda.h"

namespace strata::cuda {
namespace {

Status check(const Pyramid& p, const PyramidStates& states) {
  if (p.state_dtype != p.dtype && !(p.dtype == DType::kFloat32 && is_16_bit(p.state_dtype)))
    return invalid("state_dtype: expected the type of x, or with kFloat32 a 16-bit type, got another");
  if (p.batch < 0 || p.tokens < 0)
    return invalid("batch, tokens: expected 0 or more, got ", p.batch, " and ", p.tokens);
  if (p.channels < 1) return invalid("channels: expected 1 or more, got ", p.channels);
  if (p.levels < 1 || p.levels > kMaxPyramidLevels)
    return invalid("levels: expected 1 to ", kMaxPyramidLevels, ", got ", p.levels, "; use causal_filter_forward");
  const bool empty = p.batch * p.tokens == 0;
  if (p.x == nullptr && !empty) return invalid("x: expected a pointer to data, got null");
  for (int l = 0; l < p.levels; ++l) {
    if (l > 0 && p.weight[l] == nullptr) return invalid("weight[", l, "]: expected a pointer to data, got null");
    if (states.state[l] == nullptr && !empty) return invalid("state[", l, "]: expected a pointer to data, got null");
  }
  return {};
}

}  // namespace

Status pyramid_forward(const Pyramid& p, const PyramidStates& states, Stream stream) {
  if (Status s = check(p, states); !s.ok()) return s;
  if (p.batch * p.tokens == 0) return {};
  return cuda_status(pyramid_forward_simt(p, states, static_cast<cudaStream_t>(stream)), "pyramid forward");
}

size_t pyramid_backward_workspace(const Pyramid& p) { return pyramid_backward_workspace_simt(p); }

Status pyramid_backward(const Pyramid& p, const PyramidStates& states, const PyramidGradients& g, void* workspace,
                        Stream stream) {
  if (Status s = check(p, states); !s.ok()) return s;
  if (Status s = check(p, g.dstates); !s.ok()) return s;
  if (g.dx == nullptr && p.batch * p.tokens > 0) return invalid("dx: expected a pointer to data, got null");
  for (int l = 1; l < p.levels; ++l) {
    if (g.dweights.state[l] == nullptr) return invalid("dweights[", l, "]: expected a pointer to data, got null");
  }
  if (workspace == nullptr)
    return invalid("workspace: expected pyramid_backward_workspace() bytes of device memory, got null");
  return cuda_status(pyramid_backward_simt(p, states, g, workspace, static_cast<cudaStream_t>(stream)),
                     "pyramid backward");
}

}  // namespace strata::cuda
