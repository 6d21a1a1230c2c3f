// Functions that host code, the CPU kernels of every instruction set and CUDA kernels share. Internal linkage: the
// copies of different instruction sets must not be merged.
#pragma once

#ifdef __CUDACC__
#define STRATA_SHARED __host__ __device__ static inline
#else
#define STRATA_SHARED static inline
#endif
