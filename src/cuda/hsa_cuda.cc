// The public calls for HSA on CUDA: check, launch.
#include "base/hsa_check.h"
#include "cuda/cuda_status.h"
#include "cuda/hsa_cuda_kernels.h"
#include "strata/cuda.h"

namespace strata::cuda {
namespace {

Status check_plan(const HsaProblem& p, const HsaPlan& plan, const int32_t* numbers, const void* workspace) {
  if (Status s = hsa_check(p, On::kDevice); !s.ok()) return s;
  if (p.heads > 65535) return invalid("heads: expected at most 65535 on CUDA, got ", p.heads);
  int64_t tokens = 0, families = 0;
  for (int64_t n = 0; n < p.sequences; ++n) tokens += p.trees[n].tokens, families += p.trees[n].families;
  if (tokens != plan.leaves || families != plan.families) {
    return invalid("plan: expected one of these trees (", tokens, " tokens, ", families, " families), got one of ",
                   plan.leaves, " tokens and ", plan.families, " families; make it with hsa_plan()");
  }
  if (p.positions != nullptr && (plan.position_tables > p.kinds || plan.position_places > p.places)) {
    return invalid("positions: the trees want ", plan.position_tables, " tables of ", plan.position_places,
                   " places, got ", p.kinds, " of ", p.places, "; use a larger table or make the families sets");
  }
  if (tokens > 0 && (numbers == nullptr || workspace == nullptr))
    return invalid("numbers, workspace: expected device memory, got null");
  return {};
}

}  // namespace

Status hsa_forward(const HsaProblem& p, const HsaPlan& plan, const int32_t* numbers, const HsaOutputs& o,
                   void* workspace, Stream stream) {
  if (Status s = check_plan(p, plan, numbers, workspace); !s.ok()) return s;
  return cuda_status(hsa_forward_any_tree(p, plan, numbers, o, workspace, static_cast<cudaStream_t>(stream)),
                     "HSA forward");
}

Status hsa_backward(const HsaProblem& p, const HsaPlan& plan, const int32_t* numbers, const HsaGradients& g,
                    void* workspace, Stream stream) {
  if (Status s = check_plan(p, plan, numbers, workspace); !s.ok()) return s;
  if (Status s = hsa_check(g, p); !s.ok()) return s;
  return cuda_status(hsa_backward_any_tree(p, plan, numbers, g, workspace, static_cast<cudaStream_t>(stream)),
                     "HSA backward");
}

}  // namespace strata::cuda
