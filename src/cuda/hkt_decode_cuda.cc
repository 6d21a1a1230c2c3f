// HKT's decoding steps on CUDA: the checks, and how a cache is split.
#include <algorithm>
#include <limits>

#include "base/hkt_check.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/hkt_decode.h"
#include "cuda/storage.h"
#include "strata/cuda.h"

namespace strata::cuda {

namespace {

int64_t blocks_at_once(const HktDecode& d) {
  const int channels = std::max(d.head_size, d.value_size), bytes = d.dtype == DType::kFloat64 ? 8
                                                                    : is_16_bit(d.dtype)       ? 2
                                                                                               : 4;
  const int chunks = (channels <= 64 ? 64 : channels <= 128 ? 128 : 256) * bytes / 128;
  return decode_blocks(chunks, d.heads > d.key_heads ? 2 : 1, d.levels > 3) * device_properties().multiprocessors;
}

}  // namespace

// Enough blocks to fill the GPU; where there are sequences enough, more of them, so that none is left over at the end,
// but no short ones.
int hkt_decode_splits(const HktDecode& d) {
  constexpr int64_t kWaves = 8, kFewestTokens = 128, kTokens = 1024;  // of a split: where blocks are missing, where not
  const int64_t places = blocks_at_once(d), lines = d.batch * d.key_heads;
  int64_t tokens = d.value_slots > 0 ? d.value_slots : std::numeric_limits<int32_t>::max();
  if (d.window >= 0) tokens = std::min(tokens, d.window + 1);
  auto parts = [&](int64_t size) { return std::max<int64_t>(1, (tokens + size - 1) / size); };
  const int64_t filling = std::min(std::max<int64_t>(1, places / lines), parts(kFewestTokens));
  const int64_t even = std::min(std::max<int64_t>(1, kWaves * places / lines), parts(kTokens));
  return static_cast<int>(std::max(filling, even));
}

size_t hkt_decode_workspace(const HktDecode& d) {
  const int splits = d.batch * d.key_heads == 0 ? 1 : hkt_decode_splits(d);
  return splits == 1 ? 0 : compute_size(d.dtype) * static_cast<size_t>(d.batch * d.heads * splits * (d.value_size + 2));
}

Status hkt_decode(const HktDecode& d, void* workspace, Stream stream) {
  if (Status s = hkt_check(d, On::kDevice); !s.ok()) return s;
  if (d.batch == 0) return {};
  if (workspace == nullptr && hkt_decode_workspace(d) > 0)
    return invalid("workspace: expected hkt_decode_workspace() bytes of device memory, got null");
  return cuda_status(hkt_decode_simt(d, workspace, static_cast<cudaStream_t>(stream)), "HKT, one decoding step");
}

Status hkt_append(const HktAppend& a, Stream stream) {
  if (Status s = hkt_check(a, On::kDevice); !s.ok() || a.batch == 0) return s;
  return cuda_status(hkt_append_simt(a, static_cast<cudaStream_t>(stream)), "HKT, rows of a new token");
}

}  // namespace strata::cuda
