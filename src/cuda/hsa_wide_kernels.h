// The kernels of wide families (hsa_wide_mma.cuh): each call does those of one depth, and nothing where there are none.
#pragma once

#include "cuda/hsa_args.h"

namespace strata::cuda {

template <class T>
struct WideGradientArgs {
  HsaArgs<T> a;
  HsaGradients g;
  long long* positions;
  bool root;
  int64_t families = 0, first_tile = 0;  // of all depths; of this depth
};

// hsa_wide_forward_mma.cu
template <class T>
cudaError_t hsa_wide_up(const HsaCall& call, const HsaArgs<T>& a, const View& out, int64_t depth);

// hsa_wide_backward_mma.cu
template <class T>
cudaError_t hsa_wide_mass(const HsaCall& call, const HsaArgs<T>& a, const ConstView& dout, int64_t depth);
template <class T>
cudaError_t hsa_wide_gradient(const HsaCall& call, const WideGradientArgs<T>& args, int64_t depth);

}  // namespace strata::cuda
