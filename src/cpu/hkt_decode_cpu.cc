// One decoding step: a single query per head against the cached keys of every level. It reads each key and value once,
// so it is limited by memory bandwidth; the coarse levels cost 1/2, 1/4, .. of the finest.
#include "cpu/hkt_cpu_kernels.h"
#include "cpu/parallel.h"
#include "cpu/storage.h"

namespace strata::STRATA_ISA {
namespace {

template <class S, class T>
T dot(const T* query, Rows<const S> keys, int64_t row, int64_t channels) {
  T sum = 0;
  int64_t c = 0;
  if constexpr (sizeof(S) == sizeof(T)) {
    if (keys.channel_stride == 1) {
      const T* key = &keys.at(row, 0);
      Vec<T> acc{};
      for (; c + kLanes<T> <= channels; c += kLanes<T>) acc += load(query + c) * load(key + c);
      for (int x = 0; x < kLanes<T>; ++x) sum += acc[x];
    }
  }
  for (; c < channels; ++c) sum += query[c] * widen(keys.at(row, c));
  return sum;
}

// Where a row lies: row r of a ring has slot r mod slots.
int64_t slot_of(int64_t row, int64_t slots) { return slots == 0 || row < slots ? row : row % slots; }

// The first visible token of a sequence.
int64_t first_token(const HktDecode& d, int64_t b) {
  return d.window < 0 ? 0 : max(int64_t{0}, d.lengths[b] - 1 - d.window);
}

// scores[j - first] += <q^(l), k^(l)_{j >> l}>, each product computed once.
template <class S, class T>
void add_level(const HktDecode& d, int l, int64_t b, int64_t h, int64_t first, const T* query, T* scores) {
  const Rows<const S> keys = rows_of<S>(d.k[l], b, h / (d.heads / d.key_heads));
  const int64_t length = d.lengths[b];
  for (int64_t m = first >> l; m << l < length; ++m) {
    const T product = dot<S, T>(query, keys, slot_of(m, d.key_slots[l]), d.head_size);
    const int64_t end = min(length, (m + 1) << l);
    for (int64_t j = max(first, m << l); j < end; ++j) scores[j - first] += product;
  }
}

template <class S>
void decode_head(const HktDecode& d, int64_t b, int64_t h, void* memory) {
  using T = typename Compute<S>::Type;
  const int64_t length = d.lengths[b], first = first_token(d, b);
  T* query = static_cast<T*>(memory);
  T* out = query + kMaxHeadSize;
  T* scores = out + kMaxHeadSize;

  memset(out, 0, sizeof(T) * d.value_size);
  memset(scores, 0, sizeof(T) * (length - first));
  for (int l = 0; l < d.levels; ++l) {
    const T factor = static_cast<T>(d.scale) * static_cast<const T*>(d.weights)[h * d.levels + l] * kLog2E<T>;
    const int64_t row = slot_of(max(int64_t{0}, length - 1) >> l, max(int64_t{1}, d.query_slots[l]));
    pack_rows<S, T>(rows_of<S>(d.q[l], b, h), row, 1, d.head_size, factor, query, 1, d.head_size);
    add_level<S, T>(d, l, b, h, first, query, scores);
  }
  T peak = -kInfinity<T>;
  for (int64_t j = 0; j < length - first; ++j) peak = scores[j] > peak ? scores[j] : peak;
  const T reference = peak == -kInfinity<T> ? T(0) : peak;
  T sum = 0;
  const Rows<const S> values = rows_of<S>(d.v, b, h / (d.heads / d.key_heads));
  for (int64_t j = first; j < length; ++j) {
    const T e = exp2<T>(splat(scores[j - first] - reference))[0];
    const int64_t slot = slot_of(j, d.value_slots);
    sum += e;
    for (int64_t c = 0; c < d.value_size; ++c) out[c] += e * widen(values.at(slot, c));
  }
  const Rows<S> result = rows_of<S>(d.out, b, h);
  for (int64_t c = 0; c < d.value_size; ++c) narrow(sum == T(0) ? T(0) : out[c] / sum, &result.at(0, c));
}

template <class S>
bool decode(const HktDecode& d, int threads) {
  int64_t longest = 0;
  for (int64_t b = 0; b < d.batch; ++b) longest = max(longest, d.lengths[b] - first_token(d, b));
  const int64_t numbers = 2 * kMaxHeadSize + longest;
  const Workspace workspace(numbers * static_cast<int64_t>(sizeof(typename Compute<S>::Type)), threads);
  if (!workspace.ok()) return false;
  parallel_items(d.batch * d.heads, threads, [&](int64_t item, int thread) {
    decode_head<S>(d, item / d.heads, item % d.heads, workspace.slice(thread));
  });
  return true;
}

}  // namespace

bool hkt_decode_cpu(const HktDecode& d, int threads) {
  return with_storage(d.dtype, [&](auto storage) { return decode<decltype(storage)>(d, threads); });
}

}  // namespace strata::STRATA_ISA
