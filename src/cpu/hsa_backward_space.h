// The work space of HSA's backward pass, and its small loops.
#pragma once

#include "cpu/hsa_family.h"

namespace strata::STRATA_ISA {

template <class T>
struct HsaBackwardSpace {
  // As in the forward pass: nodes and leaves from `shared`, tiles from `own`.
  HsaBackwardSpace(const HsaProblem& p, int64_t families, int64_t tokens, int64_t gradient_tokens, Arena& shared,
                   Arena& own)
      : nodes(p, families, shared),
        tile(p, own),
        y(shared.take<T>(families * nodes.value_width)),
        dv(shared.take<T>(families * nodes.value_width)),
        mbar(shared.take<T>(families)),
        mu(shared.take<T>(families)),
        fbar(shared.take<T>(families)),
        dweight(shared.take<T>(families)),
        dkappa(shared.take<T>(families)),
        leaf_z(shared.take<T>(tokens)),
        leaf_mu(shared.take<T>(tokens)),
        leaf_dweight(shared.take<T>(tokens)),
        leaf_dkappa(shared.take<T>(tokens)),
        leaf_dv(shared.take<T>(gradient_tokens * p.value_size)),
        depths(shared.take<int32_t>(families + 1)),
        y_rows(own.take<T>(kTile * nodes.value_width)),
        y_transposed(own.take<T>(p.value_size * kTile)),
        gradient(own.take<T>(kTile * max(nodes.key_width, nodes.value_width))),
        row_z(own.take<T>(kTile)),
        row_mu(own.take<T>(kTile)),
        row_share(own.take<T>(kTile)) {
    for (int l = 0; l < p.levels; ++l) {
      dq[l] = shared.take<T>(families * nodes.key_width);
      dk[l] = shared.take<T>(families * nodes.key_width);
      leaf_dq[l] = shared.take<T>(level_rows(gradient_tokens, l) * p.head_size);
      leaf_dk[l] = shared.take<T>(level_rows(gradient_tokens, l) * p.head_size);
      product[l] = own.take<T>(kTile * kTile);
    }
  }

  Nodes<T> nodes;
  FamilyTile<T> tile;
  T *y, *dv;                               // of the inner nodes: Y_A and the gradients of the means
  T *dq[kMaxLevels], *dk[kMaxLevels];      // likewise; dq is that of a_l q, before the factor a_l
  T *mbar, *mu, *fbar, *dweight, *dkappa;  // of the inner nodes
  T *leaf_z, *leaf_mu, *leaf_dweight, *leaf_dkappa;
  T *leaf_dq[kMaxLevels], *leaf_dk[kMaxLevels], *leaf_dv;  // where the caller's arrays cannot be added to in place
  int32_t* depths;
  T *y_rows, *y_transposed;
  T* product[kMaxLevels];  // (siblings, lanes): W = <Y_c, v_b>, then gbar, summed to level l
  T* gradient;             // scratch for one product's rows
  T *row_z, *row_mu, *row_share;
};

// Rows of a leaf gradient, in place when the caller stores T side by side.
template <class S, class T>
Rows<T> gradient_rows(const HsaHead<S>& head, const View& view, int64_t of_head, int l, T* fallback, int64_t channels) {
  if constexpr (sizeof(S) == sizeof(T)) {
    const Rows<S> rows = head.template leaves<S>(view, of_head, l);
    if (rows.channel_stride == 1) return rows;
  }
  return {fallback, channels, 1};
}

template <class T>
void add_to(T* to, const T* from, T factor, int64_t count) {
  for (int64_t c = 0; c < count; ++c) to[c] += factor * from[c];
}
template <class T>
void set_to(T* to, const T* from, T factor, int64_t count) {
  for (int64_t c = 0; c < count; ++c) to[c] = factor * from[c];
}
template <class T>
T dot(const T* a, const T* b, int64_t count) {
  T sum = 0;
  for (int64_t c = 0; c < count; ++c) sum += a[c] * b[c];
  return sum;
}

}  // namespace strata::STRATA_ISA
