// The same problems on an NVIDIA GPU: link strata::cuda. Everything a problem points to is device memory of the current
// device, including weights and lengths (their contents are not checked); trees are host memory. Calls queue their work
// on a stream and return at once. They neither allocate nor synchronise, so they can be captured into graphs. They are
// deterministic: the same bits from run to run.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "strata/export.h"
#include "strata/hkt.h"
#include "strata/hsa.h"
#include "strata/hsa_stream.h"
#include "strata/pyramid.h"

namespace strata::cuda {

using Stream = void*;  // a cudaStream_t; null is the default stream

// Whether these kernels can run on the current device; the status says why not.
STRATA_API Status available();

// The families of kernels, fastest first: Hopper's warpgroup products (compute capability 9.0 alone), tensor cores of
// any chip from 8.0 on, and kernels without tensor cores, which take everything and are much slower.
enum class Kernels { kSm90, kMma, kSimt };
STRATA_API const char* kernels_name(Kernels kernels);  // "sm90", "mma", "simt"
// The fastest that may be chosen. For tests and comparisons; STRATA_CUDA_KERNELS=sm90|mma|simt does the same.
STRATA_API void set_kernels(Kernels kernels);

// Which kernels a problem runs on, on the current device; outputs and gradients count as laid out like the inputs.
struct KernelChoice {
  Kernels forward, backward;
};

// Acts as if a block could use no more shared memory than this. Chips differ, and kernels and tiles are chosen by what
// fits. For tests.
STRATA_API void limit_shared_memory(int bytes);

// The sm_90 backward of HKT with heads of up to 64 channels computes every score once for sequences of at least this
// many tokens; negative: where that is faster. For tests.
STRATA_API void score_once_from(int64_t tokens);

STRATA_API std::string device_name();  // of the current device; empty if these kernels cannot run on it

// bfloat16 and float16 with 1 to 5 levels run on tensor cores, where their tiles fit into the chip's shared memory
// (docs/PERFORMANCE.md); float32, float64 and more levels run on SIMT kernels, much slower. With a bias gradient the
// bias must not broadcast over batch or heads: dbias has one slice per batch and head. `workspace` is device memory.
STRATA_API KernelChoice hkt_kernels(const HktProblem& problem);
STRATA_API Status hkt_forward(const HktProblem& problem, const HktOutputs& outputs, Stream stream);
STRATA_API size_t hkt_backward_workspace(const HktProblem& problem);  // bytes
STRATA_API Status hkt_backward(const HktProblem& problem, const HktOutputs& outputs, const HktGradients& gradients,
                               void* workspace, Stream stream);

// A decoding step. Lengths are device memory and are not checked; with slots given, no length makes a kernel read
// outside of the cache. `workspace` is device memory, and may be null where it has no bytes.
STRATA_API size_t hkt_decode_workspace(const HktDecode& decode);  // bytes
STRATA_API Status hkt_decode(const HktDecode& decode, void* workspace, Stream stream);
STRATA_API Status hkt_append(const HktAppend& append, Stream stream);

// The order in which the trees of a batch are processed: made once, on the host, for all layers, forward and backward.
// The caller copies `numbers` to the device and passes both to the calls below.
struct HsaPlan {
  std::vector<int32_t> numbers;
  std::vector<int64_t> depth_begin;  // families of depth d: depth_begin[d] .. depth_begin[d + 1] - 1
  // Of these, the wide ones, of more than 16 children, come last, from wide_begin[d] on. Their children are shared out
  // in tiles; those of depth d are tile_begin[d] .. tile_begin[d + 1] - 1.
  std::vector<int64_t> wide_begin, tile_begin;
  int tile_size = 0;  // children of a tile
  int64_t families = 0, leaves = 0;
  int64_t widest_family = 0;                         // children
  int64_t position_tables = 0, position_places = 0;  // the smallest position table that these families need
  int levels = 1;                                    // of the problem it was made for
  int owned_levels = 1;  // levels below this one have rows of one family each: no family's leaves cut one
  // Where in `numbers` each table starts.
  int64_t child_begin = 0, children = 0, sequence = 0, kind = 0, batch_of = 0, first_row = 0, leaf_begin = 0, roots = 0;
  int64_t first_tile = 0, tile_family = 0, tile_child = 0;  // of each family; of each tile
  int64_t star_tokens = 0;  // of every tree, where each is one family of as many tokens; 0: other trees
};
STRATA_API Status hsa_plan(const HsaProblem& problem, HsaPlan* plan);

STRATA_API KernelChoice hsa_kernels(const HsaProblem& problem, const HsaPlan& plan);
STRATA_API size_t hsa_forward_workspace(const HsaProblem& problem, const HsaPlan& plan);  // bytes
STRATA_API size_t hsa_backward_workspace(const HsaProblem& problem, const HsaPlan& plan);
STRATA_API Status hsa_forward(const HsaProblem& problem, const HsaPlan& plan, const int32_t* numbers,
                              const HsaOutputs& outputs, void* workspace, Stream stream);
STRATA_API Status hsa_backward(const HsaProblem& problem, const HsaPlan& plan, const int32_t* numbers,
                               const HsaGradients& gradients, void* workspace, Stream stream);

STRATA_API KernelChoice hsa_stream_kernels(const HsaStreamProblem& problem);
STRATA_API size_t hsa_stream_forward_workspace(const HsaStreamProblem& problem);  // bytes
STRATA_API size_t hsa_stream_backward_workspace(const HsaStreamProblem& problem);
STRATA_API Status hsa_stream_forward(const HsaStreamProblem& problem, const HsaStreamOutputs& outputs, void* workspace,
                                     Stream stream);
STRATA_API Status hsa_stream_backward(const HsaStreamProblem& problem, const HsaStreamOutputs& outputs,
                                      const HsaStreamGradients& gradients, void* workspace, Stream stream);
STRATA_API size_t hsa_stream_certificate_workspace(const HsaStreamProblem& problem);  // bytes
STRATA_API Status hsa_stream_certificate(const HsaStreamProblem& problem, void* bound, void* workspace, Stream stream);
// Lengths are device memory and are not checked. If the cache has no room for the next token, the cache is unchanged
// and the output is NaN.
STRATA_API Status hsa_stream_step(const HsaStreamStep& step, Stream stream);

// Depthwise filters.
STRATA_API Status causal_filter_forward(const CausalFilter& filter, void* y, Stream stream);
STRATA_API size_t causal_filter_backward_workspace(const CausalFilter& filter);  // bytes
STRATA_API Status causal_filter_backward(const CausalFilter& filter, const CausalFilterGradients& gradients,
                                         void* workspace, Stream stream);
STRATA_API Status pyramid_forward(const Pyramid& pyramid, const PyramidStates& states, Stream stream);
STRATA_API size_t pyramid_backward_workspace(const Pyramid& pyramid);  // bytes
STRATA_API Status pyramid_backward(const Pyramid& pyramid, const PyramidStates& states,
                                   const PyramidGradients& gradients, void* workspace, Stream stream);
STRATA_API Status pyramid_step(const PyramidStep& step, Stream stream);

// A kernel that does nothing: what a launch costs, for comparisons.
STRATA_API Status launch_nothing(Stream stream);

// Layer norm in float32, of the models around the attention: y = (x - mean) rstd weight + bias over the channels of a
// row. Many rows of few channels are what torch's own backward is slow at (docs/PERFORMANCE.md).
inline constexpr int kMaxLayerNormChannels = 512;
struct LayerNorm {
  int64_t rows = 0;
  int channels = 0;
  float epsilon = 1e-5f;
  const float *x = nullptr, *weight = nullptr, *bias = nullptr;  // (rows, channels), (channels), (channels)
  float *mean = nullptr, *rstd = nullptr;                        // (rows); written forward, read backward
};
struct LayerNormGradients {
  const float* dy = nullptr;
  float *dx = nullptr, *dweight = nullptr, *dbias = nullptr;  // overwritten
};
STRATA_API Status layer_norm_forward(const LayerNorm& norm, float* y, Stream stream);
STRATA_API size_t layer_norm_backward_workspace(const LayerNorm& norm);  // bytes
STRATA_API Status layer_norm_backward(const LayerNorm& norm, const LayerNormGradients& gradients, void* workspace,
                                      Stream stream);

}  // namespace strata::cuda
