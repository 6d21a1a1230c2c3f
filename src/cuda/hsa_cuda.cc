// HSA on CUDA: the checks, and the only choice of kernels.
#include <algorithm>

#include "base/hsa_check.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/hsa_args.h"
#include "cuda/hsa_kernels.h"
#include "cuda/views.h"
#include "strata/cuda.h"

namespace strata::cuda {
namespace {

bool supports_mma(const HsaProblem& p, const HsaPlan& plan) {
  bool mma = allowed_kernels() != Kernels::kSimt && is_16_bit(p.dtype) && p.v.data != nullptr && plan.families > 0 &&
             std::max(p.head_size, p.value_size) <= kMmaFamilyHeadSize && hsa_mma_warps(p) > 0 &&
             (plan.widest_family <= kNarrowFamily || hsa_wide_mma_fits(p)) && is_aligned(p.v, p.value_size);
  for (int l = 0; l < p.levels; ++l) mma = mma && is_aligned(p.q[l], p.head_size) && is_aligned(p.k[l], p.head_size);
  return mma;
}
Kernels forward_kernels(const HsaProblem& p, const HsaPlan& plan, const HsaOutputs& o) {
  return supports_mma(p, plan) && is_aligned(o.out, p.value_size) ? Kernels::kMma : Kernels::kSimt;
}
Kernels backward_kernels(const HsaProblem& p, const HsaPlan& plan, const HsaGradients& g) {
  bool mma = supports_mma(p, plan) && is_aligned(g.dout, p.value_size) && is_aligned(g.dv, p.value_size);
  for (int l = 0; l < p.levels; ++l) mma = mma && is_aligned(g.dq[l], p.head_size) && is_aligned(g.dk[l], p.head_size);
  return mma ? Kernels::kMma : Kernels::kSimt;
}

// The kernels that the views of the problem allow; hsa_backward() asks as much of the gradients' views.
size_t node_bytes(const HsaProblem& p, const HsaPlan& plan, bool backward) {
  HktProblem hkt;
  const size_t star = hsa_star(p, plan, &hkt) ? hsa_star_workspace(p, hkt, backward) : 0;
  const size_t nodes =
      p.dtype == DType::kFloat64
          ? sizeof(double) * place_numbers<double>(p, plan, backward, false, nullptr, nullptr)
          : sizeof(float) * place_numbers<float>(p, plan, backward, supports_mma(p, plan), nullptr, nullptr);
  return std::max(star, nodes);
}

Status check_call(const HsaProblem& p, const HsaPlan& plan, const int32_t* numbers, const void* workspace) {
  if (Status s = hsa_check(p, On::kDevice); !s.ok()) return s;
  if (plan.levels != p.levels)
    return invalid("plan: expected one of ", p.levels, " levels, got one of ", plan.levels,
                   "; make it with hsa_plan()");
  if (p.heads > 65535) return invalid("heads: expected at most 65535 on CUDA, got ", p.heads);
  int64_t tokens = 0, families = 0;
  for (int64_t n = 0; n < p.sequences; ++n) tokens += p.trees[n].tokens, families += p.trees[n].families;
  if (tokens != plan.leaves || families != plan.families) {
    return invalid("plan: expected one of these trees (", tokens, " tokens, ", families, " families), got one of ",
                   plan.leaves, " tokens and ", plan.families, " families; make it with hsa_plan()");
  }
  if (p.positions != nullptr && (plan.position_tables > p.kinds || plan.position_places > p.places)) {
    return invalid("positions: the trees need ", plan.position_tables, " tables of ", plan.position_places,
                   " places, got ", p.kinds, " of ", p.places, "; use a larger table or make the families sets");
  }
  if (tokens > 0 && (numbers == nullptr || workspace == nullptr))
    return invalid("numbers, workspace: expected device memory, got null");
  return {};
}

}  // namespace

KernelChoice hsa_kernels(const HsaProblem& p, const HsaPlan& plan) {
  HktProblem hkt;
  if (hsa_star(p, plan, &hkt)) return hkt_kernels(hkt);
  return {forward_kernels(p, plan, {}), backward_kernels(p, plan, {})};
}

size_t hsa_forward_workspace(const HsaProblem& p, const HsaPlan& plan) { return node_bytes(p, plan, false); }
size_t hsa_backward_workspace(const HsaProblem& p, const HsaPlan& plan) {
  return static_cast<size_t>(hsa_position_bytes(p)) + node_bytes(p, plan, true);
}

Status hsa_forward(const HsaProblem& p, const HsaPlan& plan, const int32_t* numbers, const HsaOutputs& o,
                   void* workspace, Stream stream) {
  if (Status s = check_call(p, plan, numbers, workspace); !s.ok()) return s;
  const HsaCall call{p, plan, numbers, workspace, static_cast<cudaStream_t>(stream)};
  HktProblem hkt;
  if (hsa_star(p, plan, &hkt)) return hsa_star_forward(call, hkt, o);
  const bool mma = forward_kernels(p, plan, o) == Kernels::kMma;
  return cuda_status(mma ? hsa_forward_mma(call, o) : hsa_forward_simt(call, o), "HSA forward");
}

Status hsa_backward(const HsaProblem& p, const HsaPlan& plan, const int32_t* numbers, const HsaGradients& g,
                    void* workspace, Stream stream) {
  if (Status s = check_call(p, plan, numbers, workspace); !s.ok()) return s;
  if (Status s = hsa_check(g, p); !s.ok()) return s;
  const HsaCall call{p, plan, numbers, workspace, static_cast<cudaStream_t>(stream)};
  HktProblem hkt;
  if (hsa_star(p, plan, &hkt) && g.dweights.data == nullptr && g.dkey_bias.data == nullptr)
    return hsa_star_backward(call, hkt, g);
  const bool mma = backward_kernels(p, plan, g) == Kernels::kMma;
  if (!mma && p.levels > 1 && supports_mma(p, plan))
    return invalid("dout, dq, dk, dv: expected rows aligned to 16 bytes, as those of q, k and v are");
  return cuda_status(mma ? hsa_backward_mma(call, g) : hsa_backward_simt(call, g), "HSA backward");
}

}  // namespace strata::cuda
