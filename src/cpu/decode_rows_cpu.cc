// The rows that a new token adds to a pyramid (PyramidStep) and to a cache (HktAppend). They are few: plain loops do.
#include "cpu/causal_filter_cpu.h"
#include "cpu/hkt_cpu_kernels.h"
#include "cpu/storage.h"

namespace strata::STRATA_ISA {
namespace {

// A channel of a ring of rows.
template <class S>
struct ChannelRing {
  S* data;
  int64_t slots, stride;
  S& row(int64_t r) const { return data[r % slots * stride]; }
};

// sum over taps of W_r x_{row - r}
template <class S>
S filtered(const PyramidStep& p, const void* weights, int64_t channel, const ChannelRing<S>& ring, int64_t row) {
  const S* weight = static_cast<const S*>(weights) + channel;
  typename Compute<S>::Type sum = 0;
  for (int r = 0; r < p.taps && r <= row; ++r) sum += widen(weight[r * p.channels]) * widen(ring.row(row - r));
  S y;
  narrow(sum, &y);
  return y;
}

template <class S>
void step_channel(const PyramidStep& p, int64_t batch, int64_t channel) {
  auto ring = [&](void* data, int64_t slots) {
    return ChannelRing<S>{static_cast<S*>(data) + batch * slots * p.channels + channel, slots, p.channels};
  };
  auto out = [&](int level) -> S& { return static_cast<S*>(p.out)[(batch * p.levels + level) * p.channels + channel]; };
  int64_t row = p.lengths[batch];
  S state = static_cast<const S*>(p.x)[batch * p.channels + channel];
  if (p.filters[0] != nullptr) {
    const ChannelRing<S> inputs = ring(p.inputs, p.input_slots);
    inputs.row(row) = state;
    state = filtered(p, p.filters[0], channel, inputs, row);
  }
  out(0) = state;
  int level = 1;
  for (; level < p.levels; ++level, row /= 2) {
    const ChannelRing<S> states = ring(p.states[level - 1], p.slots[level - 1]);
    states.row(row) = state;
    if (row % 2 != 0) break;  // no row of this level begins, nor of those above
    state = filtered(p, p.filters[level], channel, states, row);
    out(level) = state;
  }
  for (; level < p.levels; ++level) narrow(typename Compute<S>::Type(0), &out(level));
}

// One row of every head into its slot.
template <class S>
void append_row(const ConstView& from, const View& to, int64_t batch, int64_t slot, int64_t heads, int64_t channels) {
  for (int64_t h = 0; h < heads; ++h) {
    const Rows<const S> new_row = rows_of<S>(from, batch, h);
    const Rows<S> ring = rows_of<S>(to, batch, h);
    for (int64_t c = 0; c < channels; ++c) ring.at(slot, c) = new_row.at(0, c);
  }
}

// Rows that are in their rings, those of all levels side by side.
template <class S>
void copy_current(const HktAppend& a, int64_t batch, const View* rings, const int64_t* slots, int64_t heads, void* to) {
  if (to == nullptr) return;
  for (int64_t h = 0; h < heads; ++h) {
    for (int l = 0; l < a.levels; ++l) {
      const Rows<S> ring = rows_of<S>(rings[l], batch, h);
      S* const line = static_cast<S*>(to) + ((batch * heads + h) * a.levels + l) * a.head_size;
      for (int64_t c = 0; c < a.head_size; ++c) line[c] = ring.at((a.lengths[batch] >> l) % slots[l], c);
    }
  }
}

template <class S>
void append(const HktAppend& a, int64_t batch) {
  const int64_t length = a.lengths[batch];
  for (int l = 0; l < a.levels && length % (int64_t{1} << l) == 0; ++l) {
    append_row<S>(a.q[l], a.queries[l], batch, (length >> l) % a.query_slots[l], a.heads, a.head_size);
    append_row<S>(a.k[l], a.keys[l], batch, (length >> l) % a.key_slots[l], a.key_heads, a.head_size);
  }
  if (a.v.data != nullptr) append_row<S>(a.v, a.values, batch, length % a.value_slots, a.key_heads, a.value_size);
  copy_current<S>(a, batch, a.queries, a.query_slots, a.heads, a.current_q);
  copy_current<S>(a, batch, a.keys, a.key_slots, a.key_heads, a.current_k);
}

}  // namespace

bool pyramid_step_cpu(const PyramidStep& p) {
  return with_storage(p.dtype, [&](auto storage) {
    for (int64_t at = 0; at < p.batch * p.channels; ++at)
      step_channel<decltype(storage)>(p, at / p.channels, at % p.channels);
    return true;
  });
}

bool hkt_append_cpu(const HktAppend& a) {
  return with_storage(a.dtype, [&](auto storage) {
    for (int64_t batch = 0; batch < a.batch; ++batch) append<decltype(storage)>(a, batch);
    return true;
  });
}

}  // namespace strata::STRATA_ISA
