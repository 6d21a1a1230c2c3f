// HSA backward (docs/MATH.md, section 2.4). It needs only the inputs of the forward pass: the bottom-up pass recomputes
// the means and Z and collects mu, mbar and Y; the top-down pass turns them into gradients. A leaf's own score is an
// ordinary pair of its family; for an inner child the diagonal carries mbar and fbar instead.
#include "cpu/hsa_cpu_kernels.h"
#include "cpu/hsa_family.h"

namespace strata::STRATA_ISA {
namespace {

template <class T>
struct HsaBackwardSpace {
  // As in the forward pass: nodes and leaves from `shared`, tiles from `own`.
  HsaBackwardSpace(const HsaProblem& p, int64_t families, int64_t tokens, int64_t gradient_tokens, Arena& shared,
                   Arena& own)
      : nodes(p, families, shared),
        tile(p, own),
        y(shared.take<T>(families * nodes.value_width)),
        dq(shared.take<T>(families * nodes.key_width)),
        dk(shared.take<T>(families * nodes.key_width)),
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
        leaf_dq(shared.take<T>(gradient_tokens * p.head_size)),
        leaf_dk(shared.take<T>(gradient_tokens * p.head_size)),
        leaf_dv(shared.take<T>(gradient_tokens * p.value_size)),
        depths(shared.take<int32_t>(families + 1)),
        y_rows(own.take<T>(kTile * nodes.value_width)),
        y_transposed(own.take<T>(p.value_size * kTile)),
        product(own.take<T>(kTile * kTile)),
        gradient(own.take<T>(kTile * max(nodes.key_width, nodes.value_width))),
        row_z(own.take<T>(kTile)),
        row_mu(own.take<T>(kTile)),
        row_share(own.take<T>(kTile)) {}

  Nodes<T> nodes;
  FamilyTile<T> tile;
  T *y, *dq, *dk, *dv;                     // of the inner nodes: Y_A and the gradients of the means
  T *mbar, *mu, *fbar, *dweight, *dkappa;  // of the inner nodes
  T *leaf_z, *leaf_mu, *leaf_dweight, *leaf_dkappa;
  T *leaf_dq, *leaf_dk, *leaf_dv;  // where the caller's arrays cannot be added to in place
  int32_t* depths;
  T *y_rows, *y_transposed;
  T* product;   // (siblings, lanes): W = <Y_c, v_b>, then gbar
  T* gradient;  // scratch for one product's rows
  T *row_z, *row_mu, *row_share;
};

// Rows of a leaf gradient, in place when the caller stores T side by side.
template <class S, class T>
Rows<T> gradient_rows(const HsaHead<S>& head, const View& view, T* fallback, int64_t channels) {
  if constexpr (sizeof(S) == sizeof(T)) {
    const Rows<S> rows = head.template leaves<S>(view);
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

template <class S>
class HsaBackward {
 public:
  using T = typename Compute<S>::Type;

  HsaBackward(const HsaHead<S>& head, const HsaGradients& g, T* dpositions, const HsaBackwardSpace<T>& space)
      : head_(head), p_(head.p), g_(g), s_(space), nodes_(s_.nodes), dpositions_(dpositions) {
    dout_ = head.template leaves<const S>(g.dout);
    dq_ = gradient_rows<S, T>(head, g.dq, s_.leaf_dq, p_.head_size);
    dk_ = gradient_rows<S, T>(head, g.dk, s_.leaf_dk, p_.head_size);
    dv_ = gradient_rows<S, T>(head, g.dv, s_.leaf_dv, p_.value_size);
  }

  // The numbers of the root, before the top-down pass.
  void start_root() {
    memset(s_.dq, 0, sizeof(T) * nodes_.key_width);
    memset(s_.dk, 0, sizeof(T) * nodes_.key_width);
    memset(s_.dv, 0, sizeof(T) * nodes_.value_width);
    nodes_.m[0] = 1;
    s_.dweight[0] = s_.dkappa[0] = 0;
    s_.fbar[0] = g_.dscore == nullptr ? T(0) : static_cast<const T*>(g_.dscore)[head_.n * p_.heads + head_.h];
  }

 private:
  const int32_t* children_of(int64_t family) const { return head_.tree.children + head_.tree.child_begin[family]; }
  int64_t size_of(int64_t family) const { return head_.tree.child_begin[family + 1] - head_.tree.child_begin[family]; }
  T weight_of(int32_t child) const { return child < 0 ? nodes_.weight[~child] : head_.weight_of(child); }
  T z_of(int32_t child) const { return child < 0 ? nodes_.Z[~child] : s_.leaf_z[child]; }

  DenseRows<T> rows(Rows<const S> leaf, const T* node, int64_t width, int64_t channels, const int32_t* children,
                    int64_t count, T* scratch) const {
    return child_rows<S, T>(head_, leaf, node, width, channels, children, count, scratch);
  }
  DenseRows<T> k_rows(const int32_t* children, int64_t count) {
    return rows(head_.k, nodes_.k, nodes_.key_width, p_.head_size, children, count, s_.tile.k_rows);
  }
  DenseRows<T> v_rows(const int32_t* children, int64_t count) {
    return rows(head_.v, nodes_.v, nodes_.value_width, p_.value_size, children, count, s_.tile.v_rows);
  }

  // The operands of the queries i0 .. i0 + nq: q natural and transposed, Y natural and transposed.
  void load_queries(const int32_t* children, int64_t i0, int64_t nq, int64_t lanes) {
    q_ = rows(head_.q, nodes_.q, nodes_.key_width, p_.head_size, children + i0, nq, s_.tile.q_rows);
    y_ = rows(dout_, s_.y, nodes_.value_width, p_.value_size, children + i0, nq, s_.y_rows);
    transpose_rows<T>(q_, nq, p_.head_size, static_cast<T>(p_.scale) * kLog2E<T>, s_.tile.queries, lanes);
    transpose_rows<T>(y_, nq, p_.value_size, T(1), s_.y_transposed, lanes);
  }

  // P into tile.scores and W = <Y_c, v_b> into product, for the keys j0 .. j0 + nk. An inner child's own entry of W is
  // mbar.
  void probabilities(int64_t family, int64_t i0, int64_t nq, int64_t j0, int64_t nk, int64_t lanes, bool scored) {
    const int32_t* children = children_of(family);
    if (!scored) family_scores(head_, nodes_, family, i0, nq, j0, nk, lanes, k_rows(children + j0, nk), s_.tile);
    for (int64_t y = 0; y < nk; ++y) {
      for (int64_t x = 0; x < lanes; x += kLanes<T>) {
        T* at = s_.tile.scores + y * lanes + x;
        store(at, exp2<T>(load(at) - load(s_.row_z + x)));
      }
    }
    const DenseRows<T> v = v_rows(children + j0, nk);
    gemm<T, Layout::kRowMajor>({v.data, v.step}, {s_.y_transposed, lanes}, s_.product, lanes, nk, lanes / kLanes<T>,
                               p_.value_size, StartZero<T>());
    for (int64_t y = max(0, i0 - j0); y < min(nk, i0 + nq - j0); ++y) {
      if (children[j0 + y] < 0) s_.product[y * lanes + j0 + y - i0] = s_.mbar[~children[j0 + y]];
    }
  }

 public:
  void bottom_up(int64_t family) {
    const int32_t* children = children_of(family);
    const int64_t size = size_of(family);
    family_means(head_, nodes_, family, s_.tile);
    const T total = nodes_.weight[family];
    T* Y = s_.y + family * nodes_.value_width;
    memset(Y, 0, sizeof(T) * nodes_.value_width);
    T f = 0, mbar = 0;
    for (int64_t i0 = 0; i0 < size; i0 += kTile) {
      const int64_t nq = min(kTile, size - i0);
      const int64_t lanes = round_up(nq, kLanes<T>);
      const int64_t end = p_.causal ? i0 + nq : size;
      load_queries(children, i0, nq, lanes);
      start_softmax(lanes, s_.tile.peak, s_.tile.sum);
      const bool single = end <= kTile;
      for (int64_t j0 = 0; j0 < end; j0 += kTile) {
        const int64_t nk = min(kTile, size - j0);
        family_scores(head_, nodes_, family, i0, nq, j0, nk, lanes, k_rows(children + j0, nk), s_.tile);
        if (single)
          memcpy(s_.product, s_.tile.scores, sizeof(T) * nk * lanes);  // a copy, because the softmax overwrites them
        online_softmax(s_.tile.scores, nk, lanes, s_.tile.peak, s_.tile.sum, s_.tile.factor);
        if (single) memcpy(s_.tile.scores, s_.product, sizeof(T) * nk * lanes);
      }
      for (int64_t x = 0; x < lanes; ++x) {
        const T z = x < nq ? softmax_lse(s_.tile.peak[x], s_.tile.sum[x]) : -kInfinity<T>;
        s_.row_z[x] = z == -kInfinity<T> ? kInfinity<T> : z * kLog2E<T>;
        if (x >= nq) continue;
        const int32_t child = children[i0 + x];
        (child < 0 ? nodes_.Z[~child] : s_.leaf_z[child]) = z;
        if (weight_of(child) > T(0)) f += weight_of(child) / total * z;
        add_to(Y, y_.data + x * y_.step, T(1), nodes_.value_width);
      }
      T sums[kTile] = {};
      for (int64_t j0 = 0; j0 < end; j0 += kTile) {
        const int64_t nk = min(kTile, size - j0);
        probabilities(family, i0, nq, j0, nk, lanes, single);
        for (int64_t y = 0; y < nk; ++y)
          for (int64_t x = 0; x < lanes; ++x) sums[x] += s_.tile.scores[y * lanes + x] * s_.product[y * lanes + x];
      }
      for (int64_t x = 0; x < nq; ++x) {
        const int32_t child = children[i0 + x];
        (child < 0 ? s_.mu[~child] : s_.leaf_mu[child]) = sums[x];
        mbar += sums[x];
      }
    }
    nodes_.f[family] = total > T(0) ? f : -kInfinity<T>;
    s_.mbar[family] = mbar;
  }

 private:
  // The gradients that each child gets through the means, f and |A| of its family; the products below add to them.
  void start_children(int64_t family) {
    const T total = nodes_.weight[family];
    const T inverse = total > T(0) ? T(1) / total : T(0);
    const T *dq = s_.dq + family * nodes_.key_width, *dk = s_.dk + family * nodes_.key_width,
            *dv = s_.dv + family * nodes_.value_width;
    const bool with_weights = g_.dweights.data != nullptr;
    T own = 0;
    if (with_weights) {
      own = dot(dq, nodes_.q + family * nodes_.key_width, nodes_.key_width) +
            dot(dk, nodes_.k + family * nodes_.key_width, nodes_.key_width) +
            dot(dv, nodes_.v + family * nodes_.value_width, nodes_.value_width) +
            s_.dkappa[family] * nodes_.kappa[family];
    }
    const int32_t* children = children_of(family);
    for (int64_t c = 0; c < size_of(family); ++c) {
      const int32_t child = children[c];
      const T share = weight_of(child) * inverse;
      T dweight = 0;
      if (child < 0) {
        set_to(s_.dq + ~child * nodes_.key_width, dq, share, nodes_.key_width);
        set_to(s_.dk + ~child * nodes_.key_width, dk, share, nodes_.key_width);
        set_to(s_.dv + ~child * nodes_.value_width, dv, share, nodes_.value_width);
        if (with_weights && share > T(0)) {
          dweight = dot(dq, nodes_.q + ~child * nodes_.key_width, nodes_.key_width) +
                    dot(dk, nodes_.k + ~child * nodes_.key_width, nodes_.key_width) +
                    dot(dv, nodes_.v + ~child * nodes_.value_width, nodes_.value_width) +
                    s_.dkappa[family] * nodes_.kappa[~child];
        }
      } else {
        set_to(&dq_.at(child, 0), dq, share, p_.head_size);
        set_to(&dk_.at(child, 0), dk, share, p_.head_size);
        set_to(&dv_.at(child, 0), dv, share, p_.value_size);
        if (with_weights && share > T(0)) {
          for (int64_t x = 0; x < p_.head_size; ++x)
            dweight += dq[x] * widen(head_.q.at(child, x)) + dk[x] * widen(head_.k.at(child, x));
          for (int64_t x = 0; x < p_.value_size; ++x) dweight += dv[x] * widen(head_.v.at(child, x));
          dweight += s_.dkappa[family] * head_.kappa_of(child);
        }
      }
      if (with_weights) {
        const T z_term = share > T(0) ? s_.fbar[family] * (z_of(child) - nodes_.f[family]) : T(0);
        (child < 0 ? s_.dweight[~child] : s_.leaf_dweight[child]) =
            share > T(0) ? s_.dweight[family] + (dweight - own + z_term) * inverse : T(0);
      }
      (child < 0 ? s_.dkappa[~child] : s_.leaf_dkappa[child]) = share * s_.dkappa[family];
    }
  }

  // Adds `count` rows of the scratch, times factor, to a gradient of the given children.
  void scatter(const int32_t* children, int64_t count, int64_t width, int64_t channels, T factor, Rows<T> leaf,
               T* node) {
    for (int64_t c = 0; c < count; ++c) {
      T* to = children[c] < 0 ? node + ~children[c] * width : &leaf.at(children[c], 0);
      add_to(to, s_.gradient + c * width, factor, channels);
    }
  }

 public:
  void top_down(int64_t family) {
    const int32_t* children = children_of(family);
    const int64_t size = size_of(family);
    start_children(family);
    const T m = nodes_.m[family], fbar = s_.fbar[family];
    const T total = nodes_.weight[family];
    const T inverse = total > T(0) ? T(1) / total : T(0);
    const T scale = static_cast<T>(p_.scale);
    for (int64_t i0 = 0; i0 < size; i0 += kTile) {
      const int64_t nq = min(kTile, size - i0);
      const int64_t lanes = round_up(nq, kLanes<T>);
      load_queries(children, i0, nq, lanes);
      for (int64_t x = 0; x < lanes; ++x) {
        const T z = x < nq ? z_of(children[i0 + x]) : -kInfinity<T>;
        s_.row_z[x] = z == -kInfinity<T> ? kInfinity<T> : z * kLog2E<T>;
        s_.row_mu[x] = x < nq ? (children[i0 + x] < 0 ? s_.mu[~children[i0 + x]] : s_.leaf_mu[children[i0 + x]]) : T(0);
        s_.row_share[x] = x < nq ? fbar * weight_of(children[i0 + x]) * inverse : T(0);
      }
      for (int64_t j0 = 0; j0 < (p_.causal ? i0 + nq : size); j0 += kTile) {
        top_down_pair(family, i0, nq, j0, min(kTile, size - j0), lanes, m, scale);
      }
    }
  }

 private:
  // gbar_cb = P_cb (m (W_cb - mu_c) + z_c), and the products it enters.
  void top_down_pair(int64_t family, int64_t i0, int64_t nq, int64_t j0, int64_t nk, int64_t lanes, T m, T scale) {
    const int32_t* children = children_of(family);
    probabilities(family, i0, nq, j0, nk, lanes, false);
    for (int64_t y = 0; y < nk; ++y) {
      for (int64_t x = 0; x < lanes; x += kLanes<T>) {
        const int64_t at = y * lanes + x;
        const Vec<T> P = load(s_.tile.scores + at);
        store(s_.product + at, P * (m * (load(s_.product + at) - load(s_.row_mu + x)) + load(s_.row_share + x)));
        store(s_.tile.scores + at, m * P);
      }
    }
    for (int64_t y = max(0, i0 - j0); y < min(nk, i0 + nq - j0); ++y) {
      if (children[j0 + y] >= 0) continue;
      const int64_t at = y * lanes + j0 + y - i0;
      s_.fbar[~children[j0 + y]] = s_.product[at];
      nodes_.m[~children[j0 + y]] = s_.tile.scores[at];
      s_.product[at] = s_.tile.scores[at] = 0;
    }
    add_terms(family, i0, nq, j0, nk, lanes);

    const int64_t kw = nodes_.key_width, vw = nodes_.value_width;
    const DenseRows<T> k = k_rows(children + j0, nk);
    gemm<T, Layout::kTransposed>({s_.product, lanes}, {k.data, k.step}, s_.gradient, kw, nq, kw / kLanes<T>, nk,
                                 StartZero<T>());
    scatter(children + i0, nq, kw, p_.head_size, scale, dq_, s_.dq);
    gemm<T, Layout::kRowMajor>({s_.product, lanes}, {q_.data, q_.step}, s_.gradient, kw, nk, kw / kLanes<T>, nq,
                               StartZero<T>());
    scatter(children + j0, nk, kw, p_.head_size, scale, dk_, s_.dk);
    gemm<T, Layout::kRowMajor>({s_.tile.scores, lanes}, {y_.data, y_.step}, s_.gradient, vw, nk, vw / kLanes<T>, nq,
                               StartZero<T>());
    scatter(children + j0, nk, vw, p_.value_size, T(1), dv_, s_.dv);
  }

  // The gradients of what is added to a score: kappa_b, log|b| and E(c, b).
  void add_terms(int64_t family, int64_t i0, int64_t nq, int64_t j0, int64_t nk, int64_t lanes) {
    const bool terms = g_.dkey_bias.data != nullptr || g_.dweights.data != nullptr;
    T* table = dpositions_ == nullptr || head_.table_of(family) == nullptr
                   ? nullptr
                   : dpositions_ + head_.tree.kind[family] * p_.places * p_.places;
    if (!terms && table == nullptr) return;
    const int32_t* children = children_of(family) + j0;
    for (int64_t y = 0; y < nk; ++y) {
      const T* row = s_.product + y * lanes;
      if (terms) {
        T sum = 0;
        for (int64_t x = 0; x < nq; ++x) sum += row[x];
        (children[y] < 0 ? s_.dkappa[~children[y]] : s_.leaf_dkappa[children[y]]) += sum;
        const T weight = weight_of(children[y]);
        if (weight > T(0)) (children[y] < 0 ? s_.dweight[~children[y]] : s_.leaf_dweight[children[y]]) += sum / weight;
      }
      for (int64_t x = 0; table != nullptr && x < nq; ++x) {
        if (i0 + x != j0 + y) table[(i0 + x) * p_.places + j0 + y] += row[x];
      }
    }
  }

  void write(Rows<T> from, const View& view, int64_t channels) const {
    const Rows<S> to = head_.template leaves<S>(view);
    if (static_cast<const void*>(from.data) == static_cast<const void*>(to.data)) return;  // it was added to in place
    for (int64_t t = 0; t < head_.tree.tokens; ++t)
      for (int64_t c = 0; c < channels; ++c) narrow(from.at(t, c), &to.at(t, c));
  }

 public:
  // Gradients that could not be added to in place, and those of weights and kappa.
  void write_leaves() const {
    write(dq_, g_.dq, p_.head_size);
    write(dk_, g_.dk, p_.head_size);
    write(dv_, g_.dv, p_.value_size);
    if (g_.dweights.data != nullptr) {
      const Rows<T> to = head_.template leaves<T>(g_.dweights);
      for (int64_t t = 0; t < head_.tree.tokens; ++t)
        to.at(t, 0) = head_.weight_of(t) > T(0) ? s_.leaf_dweight[t] : T(0);
    }
    if (g_.dkey_bias.data != nullptr) {
      const Rows<T> to = head_.template leaves<T>(g_.dkey_bias);
      for (int64_t t = 0; t < head_.tree.tokens; ++t) to.at(t, 0) = s_.leaf_dkappa[t];
    }
  }

 private:
  const HsaHead<S>& head_;
  const HsaProblem& p_;
  const HsaGradients& g_;
  HsaBackwardSpace<T> s_;
  Nodes<T>& nodes_;
  T* dpositions_;
  Rows<const S> dout_;
  Rows<T> dq_, dk_, dv_;
  DenseRows<T> q_, y_;
};

template <class S>
bool backward(const HsaProblem& p, const HsaGradients& g, int threads) {
  using T = typename Compute<S>::Type;
  const LargestTree largest(p);
  const int64_t families = largest.families, tokens = largest.tokens;
  const bool in_place = sizeof(S) == sizeof(T) && g.dq.stride[3] == 1 && g.dk.stride[3] == 1 && g.dv.stride[3] == 1;
  const int64_t gradient_tokens = in_place ? 0 : tokens;
  Arena measure_shared(nullptr), measure_own(nullptr);
  HsaBackwardSpace<T> sized(p, families, tokens, gradient_tokens, measure_shared, measure_own);
  const int64_t table = p.kinds * p.places * p.places;
  const int64_t items = p.sequences * p.heads;
  // The gradient of a position table sums over families in a fixed order, so one thread processes all families.
  const bool by_family = items < threads && g.dpositions == nullptr;
  const Workspace shared(measure_shared.used(), by_family ? 1 : threads), own(measure_own.used(), threads);
  const Workspace tables(g.dpositions == nullptr ? 0 : items * table * static_cast<int64_t>(sizeof(T)), 1);
  if (!shared.ok() || !own.ok() || !tables.ok()) return false;
  T* partial = static_cast<T*>(tables.slice(0));
  if (g.dpositions != nullptr) memset(partial, 0, sizeof(T) * items * table);

  auto run = [&](int64_t item, int shared_slice, int first_thread, int inner_threads) {
    const HsaHead<S> head(p, item / p.heads, item % p.heads);
    if (head.tree.families == 0) return;
    auto space_of = [&](int thread) {
      Arena shared_arena(shared.slice(shared_slice)), own_arena(own.slice(first_thread + thread));
      return HsaBackwardSpace<T>(p, families, tokens, gradient_tokens, shared_arena, own_arena);
    };
    auto pass_of = [&](int thread) {
      return HsaBackward<S>(head, g, g.dpositions == nullptr ? nullptr : partial + item * table, space_of(thread));
    };
    int32_t* offsets = space_of(0).depths;
    const int64_t depths = depth_offsets(head.tree, offsets);
    each_family(offsets, depths, true, inner_threads,
                [&](int64_t family, int thread) { pass_of(thread).bottom_up(family); });
    pass_of(0).start_root();
    each_family(offsets, depths, false, inner_threads,
                [&](int64_t family, int thread) { pass_of(thread).top_down(family); });
    pass_of(0).write_leaves();
  };
  if (by_family) {
    for (int64_t item = 0; item < items; ++item) run(item, 0, 0, threads);
  } else {
    parallel_items(items, threads, [&](int64_t item, int thread) { run(item, thread, thread, 1); });
  }
  for (int64_t h = 0; g.dpositions != nullptr && h < p.heads; ++h) {  // over the sequences, in order
    T* to = static_cast<T*>(g.dpositions) + h * table;
    memset(to, 0, sizeof(T) * table);
    for (int64_t n = 0; n < p.sequences; ++n) add_to(to, partial + (n * p.heads + h) * table, T(1), table);
  }
  return true;
}

}  // namespace

bool hsa_backward_cpu(const HsaProblem& p, const HsaGradients& g, int threads) {
  return with_storage(p.dtype, [&](auto storage) { return backward<decltype(storage)>(p, g, threads); });
}

}  // namespace strata::STRATA_ISA
