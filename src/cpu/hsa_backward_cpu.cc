// HSA backward (docs/MATH.md, section 2.4). It needs only the inputs of the forward pass: the bottom-up pass recomputes
// the means and Z and collects mu, mbar and Y; the top-down pass turns them into gradients. A leaf's own score is an
// ordinary pair of its family; for an inner child the diagonal carries mbar and fbar instead.
#include "cpu/hsa_backward_space.h"
#include "cpu/hsa_cpu_kernels.h"

namespace strata::STRATA_ISA {
namespace {

template <class S>
class HsaBackward {
 public:
  using T = typename Compute<S>::Type;

  HsaBackward(const HsaHead<S>& head, const HsaGradients& g, T* dpositions, T* dlevels,
              const HsaBackwardSpace<T>& space)
      : head_(head), p_(head.p), g_(g), s_(space), nodes_(s_.nodes), dpositions_(dpositions), dlevels_(dlevels) {
    const int64_t group = p_.heads / p_.key_heads;
    first_ = head.h % group == 0;
    last_ = head.h % group == group - 1;
    dout_ = head.template leaves<const S>(g.dout, head.h);
    for (int l = 0; l < p_.levels; ++l) {
      dq_[l] = gradient_rows<S, T>(head, g.dq[l], head.h, l, s_.leaf_dq[l], p_.head_size);
      dk_[l] = gradient_rows<S, T>(head, g.dk[l], head.key_head, l, s_.leaf_dk[l], p_.head_size);
    }
    dv_ = gradient_rows<S, T>(head, g.dv, head.key_head, 0, s_.leaf_dv, p_.value_size);
  }

  // The numbers of the root, before the top-down pass.
  void start_root() {
    for (int l = 0; l < p_.levels; ++l) {
      memset(s_.dq[l], 0, sizeof(T) * nodes_.key_width);
      memset(s_.dk[l], 0, sizeof(T) * nodes_.key_width);
    }
    for (int l = 1; l < p_.levels; ++l) {  // coarse rows are added to by several families; tokens have one
      for (int64_t r = 0; r < level_rows(head_.tree.tokens, l); ++r) {
        memset(&dq_[l].at(r, 0), 0, sizeof(T) * p_.head_size);
        if (first_) memset(&dk_[l].at(r, 0), 0, sizeof(T) * p_.head_size);
      }
    }
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

  DenseRows<T> value_rows(Rows<const S> leaf, const T* node, const int32_t* children, const LevelAxis& axis,
                          T* scratch) const {
    return child_rows<S, T>(head_, 0, leaf, node, nodes_.value_width, p_.value_size, children, axis, scratch);
  }

  // The operands of the queries i0 .. i0 + nq: q natural and transposed, Y natural and transposed.
  void load_queries(const int32_t* children, int64_t i0, int64_t nq, int64_t lanes) {
    queries_ = child_axis(children + i0, nq, p_.levels);
    load_child_queries(head_, nodes_, children + i0, queries_, s_.tile, q_);
    y_ = value_rows(dout_, s_.y, children + i0, queries_, s_.y_rows);
    transpose_rows<T>(y_, nq, p_.value_size, T(1), s_.y_transposed, lanes);
  }
  FamilyPair<T> load_pair(const int32_t* children, int64_t i0, int64_t j0, int64_t nk) {
    return family_pair(head_, nodes_, children, i0, queries_, j0, nk, s_.tile);
  }

  // P into tile.scores, unless `scored` from the scores that are there, and W = <Y_c, v_b> into product. An inner
  // child's own entry of W is mbar.
  void probabilities(int64_t family, const FamilyPair<T>& pair, bool scored) {
    const int32_t* children = children_of(family);
    const int64_t i0 = pair.i0, j0 = pair.j0, nk = pair.nk, lanes = pair.lanes;
    T *scores = s_.tile.scores[0], *product = s_.product[0];
    if (!scored) family_scores(head_, nodes_, family, pair, s_.tile);
    for (int64_t y = 0; y < nk; ++y) {
      for (int64_t x = 0; x < lanes; x += kLanes<T>) {
        T* at = scores + y * lanes + x;
        store(at, exp2<T>(load(at) - load(s_.row_z + x)));
      }
    }
    const DenseRows<T> v = value_rows(head_.v, nodes_.v, children + j0, pair.grid.keys, s_.tile.v_rows);
    multiply_tiles<T, Layout::kRowMajor>(s_.tile.products, {v.data, v.step}, {s_.y_transposed, lanes}, product, lanes,
                                         nk, lanes / kLanes<T>, p_.value_size, StartZero<T>());
    for (int64_t y = max(0, i0 - j0); y < min(nk, i0 + pair.nq - j0); ++y) {
      if (children[j0 + y] < 0) product[y * lanes + j0 + y - i0] = s_.mbar[~children[j0 + y]];
    }
  }

 public:
  void bottom_up(int64_t family) {
    const int32_t* children = children_of(family);
    const int64_t size = size_of(family);
    family_means(head_, nodes_, family, s_.tile);
    prefetch_queries(head_, family + 1);
    prefetch_keys(head_, family + 1);
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
        T *scores = s_.tile.scores[0], *copy = s_.product[0];
        family_scores(head_, nodes_, family, load_pair(children, i0, j0, nk), s_.tile);
        if (single) memcpy(copy, scores, sizeof(T) * nk * lanes);  // because the softmax overwrites them
        online_softmax(scores, nk, lanes, s_.tile.peak, s_.tile.sum, s_.tile.factor);
        if (single) memcpy(scores, copy, sizeof(T) * nk * lanes);
      }
      if (i0 == 0) {
        prefetch_rows(head_.tree, head_.v, p_.value_size, family + 1);
        prefetch_rows(head_.tree, dout_, p_.value_size, family + 1);
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
        probabilities(family, load_pair(children, i0, j0, nk), single);
        for (int64_t y = 0; y < nk; ++y)
          for (int64_t x = 0; x < lanes; ++x)
            sums[x] += s_.tile.scores[0][y * lanes + x] * s_.product[0][y * lanes + x];
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
  // <dq, q> + <dk, k> + <dv, v> + dkappa kappa of the gradients of a family's means and a node.
  T mean_product(int64_t family, int64_t node) const {
    const int64_t kw = nodes_.key_width, vw = nodes_.value_width;
    T sum = dot(s_.dv + family * vw, nodes_.v + node * vw, vw) + s_.dkappa[family] * nodes_.kappa[node];
    for (int l = 0; l < p_.levels; ++l) {
      sum += head_.level_weight(l) * dot(s_.dq[l] + family * kw, nodes_.q[l] + node * kw, kw) +
             dot(s_.dk[l] + family * kw, nodes_.k[l] + node * kw, kw);
    }
    return sum;
  }
  T mean_product_with_token(int64_t family, int32_t t) const {
    T sum = s_.dkappa[family] * head_.kappa_of(t);
    for (int l = 0; l < p_.levels; ++l) {
      const T *dq = s_.dq[l] + family * nodes_.key_width, *dk = s_.dk[l] + family * nodes_.key_width;
      const T a = head_.level_weight(l);
      for (int64_t x = 0; x < p_.head_size; ++x)
        sum += a * dq[x] * widen(head_.q[l].at(t >> l, x)) + dk[x] * widen(head_.k[l].at(t >> l, x));
    }
    const T* dv = s_.dv + family * nodes_.value_width;
    for (int64_t x = 0; x < p_.value_size; ++x) sum += dv[x] * widen(head_.v.at(t, x));
    return sum;
  }

  // The share of its family's gradients that a token gets. Where nothing was added before, they are written.
  void start_token(int64_t family, int32_t t, T share) {
    auto give = [share](T* to, const T* from, int64_t count, bool write) {
      if (write) {
        set_to(to, from, share, count);
      } else {
        add_to(to, from, share, count);
      }
    };
    for (int l = 0; l < p_.levels; ++l) {
      give(&dq_[l].at(t >> l, 0), s_.dq[l] + family * nodes_.key_width, p_.head_size, l == 0);
      give(&dk_[l].at(t >> l, 0), s_.dk[l] + family * nodes_.key_width, p_.head_size, l == 0 && first_);
    }
    give(&dv_.at(t, 0), s_.dv + family * nodes_.value_width, p_.value_size, first_);
  }

  // The gradients that each child gets through the means, f and |A| of its family; the products below add to them.
  void start_children(int64_t family) {
    const T total = nodes_.weight[family];
    const T inverse = total > T(0) ? T(1) / total : T(0);
    const int64_t kw = nodes_.key_width, vw = nodes_.value_width;
    const bool with_weights = g_.dweights.data != nullptr;
    const T own = with_weights ? mean_product(family, family) : T(0);
    const int32_t* children = children_of(family);
    for (int64_t c = 0; c < size_of(family); ++c) {
      const int32_t child = children[c];
      const T share = weight_of(child) * inverse;
      if (child < 0) {
        for (int l = 0; l < p_.levels; ++l) {
          set_to(s_.dq[l] + ~child * kw, s_.dq[l] + family * kw, share, kw);
          set_to(s_.dk[l] + ~child * kw, s_.dk[l] + family * kw, share, kw);
        }
        set_to(s_.dv + ~child * vw, s_.dv + family * vw, share, vw);
      } else {
        start_token(family, child, share);
      }
      if (with_weights) {
        T& dweight = child < 0 ? s_.dweight[~child] : s_.leaf_dweight[child];
        dweight = 0;
        if (share > T(0)) {
          const T other = child < 0 ? mean_product(family, ~child) : mean_product_with_token(family, child);
          const T z_term = s_.fbar[family] * (z_of(child) - nodes_.f[family]);
          dweight = s_.dweight[family] + (other - own + z_term) * inverse;
        }
      }
      (child < 0 ? s_.dkappa[~child] : s_.leaf_dkappa[child]) = share * s_.dkappa[family];
    }
  }

  // Adds the rows of the scratch, times factor, to a gradient of some children, at level l.
  void scatter(const int32_t* children, const LevelAxis& axis, int l, int64_t width, int64_t channels, T factor,
               Rows<T> leaf, T* node) {
    const bool shared = axis.shrinks;
    for (int64_t c = 0; c < axis.size(l); ++c) {
      T* to = shared            ? &leaf.at(axis.origin(l) + c, 0)
              : children[c] < 0 ? node + ~children[c] * width
                                : &leaf.at(children[c] >> l, 0);
      add_to(to, s_.gradient + c * width, factor, channels);
    }
  }

 public:
  void top_down(int64_t family) {
    const int32_t* children = children_of(family);
    const int64_t size = size_of(family);
    start_children(family);
    prefetch_queries(head_, family + 1);
    prefetch_keys(head_, family + 1);
    prefetch_rows(head_.tree, head_.v, p_.value_size, family + 1);
    prefetch_rows(head_.tree, dout_, p_.value_size, family + 1);
    const T m = nodes_.m[family], fbar = s_.fbar[family];
    const T total = nodes_.weight[family];
    const T inverse = total > T(0) ? T(1) / total : T(0);
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
        top_down_pair(family, load_pair(children, i0, j0, min(kTile, size - j0)), m);
      }
    }
    for (int l = 0; l < p_.levels; ++l) {
      prefetch_rows<1>(head_.tree, dq_[l], p_.head_size, family + 1, l);
      prefetch_rows<1>(head_.tree, dk_[l], p_.head_size, family + 1, l);
    }
    prefetch_rows<1>(head_.tree, dv_, p_.value_size, family + 1);
  }

 private:
  // gbar_cb = P_cb (m (W_cb - mu_c) + z_c), and the products it enters.
  void top_down_pair(int64_t family, const FamilyPair<T>& pair, T m) {
    const int32_t* children = children_of(family);
    const int64_t i0 = pair.i0, nq = pair.nq, j0 = pair.j0, nk = pair.nk, lanes = pair.lanes;
    T *scores = s_.tile.scores[0], *product = s_.product[0];
    probabilities(family, pair, false);
    for (int64_t y = 0; y < nk; ++y) {
      for (int64_t x = 0; x < lanes; x += kLanes<T>) {
        const int64_t at = y * lanes + x;
        const Vec<T> P = load(scores + at);
        store(product + at, P * (m * (load(product + at) - load(s_.row_mu + x)) + load(s_.row_share + x)));
        store(scores + at, m * P);
      }
    }
    for (int64_t y = max(0, i0 - j0); y < min(nk, i0 + nq - j0); ++y) {
      if (children[j0 + y] >= 0) continue;
      const int64_t at = y * lanes + j0 + y - i0;
      s_.fbar[~children[j0 + y]] = product[at];
      nodes_.m[~children[j0 + y]] = scores[at];
      product[at] = scores[at] = 0;
    }
    add_terms(family, i0, nq, j0, nk, lanes);
    add_key_gradients(children, pair);
    const int64_t vw = nodes_.value_width;
    multiply_tiles<T, Layout::kRowMajor>(s_.tile.products, {scores, lanes}, {y_.data, y_.step}, s_.gradient, vw, nk,
                                         vw / kLanes<T>, nq, StartZero<T>());
    scatter(children + j0, pair.grid.keys, 0, vw, p_.value_size, T(1), dv_, s_.dv);
  }

  // dq += s gbar k and dk += s a_l gbar q at every level, gbar summed to its rows.
  void add_key_gradients(const int32_t* children, const FamilyPair<T>& pair) {
    const int64_t kw = nodes_.key_width;
    const T scale = static_cast<T>(p_.scale);
    const T* gbar = s_.product[0];
    for (int l = 0; l < p_.levels; ++l) {
      if (l > 0) gbar = sum_level<T>(pair.grid, l - 1, gbar, s_.product[l]);
      const int64_t rows = pair.grid.keys.size(l), queries = pair.grid.queries.size(l);
      const int64_t lanes = pair.grid.template lanes<T>(l);
      multiply_tiles<T, Layout::kTransposed>(s_.tile.products, {gbar, lanes}, {pair.keys[l].data, pair.keys[l].step},
                                             s_.gradient, kw, queries, kw / kLanes<T>, rows, StartZero<T>());
      scatter(children + pair.i0, pair.grid.queries, l, kw, p_.head_size, scale, dq_[l], s_.dq[l]);
      multiply_tiles<T, Layout::kRowMajor>(s_.tile.products, {gbar, lanes}, {q_[l].data, q_[l].step}, s_.gradient, kw,
                                           rows, kw / kLanes<T>, queries, StartZero<T>());
      scatter(children + pair.j0, pair.grid.keys, l, kw, p_.head_size, scale * head_.level_weight(l), dk_[l], s_.dk[l]);
    }
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
      const T* row = s_.product[0] + y * lanes;
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

  void write(Rows<T> from, const View& view, int64_t of_head, int l, int64_t channels) const {
    const Rows<S> to = head_.template leaves<S>(view, of_head, l);
    if (static_cast<const void*>(from.data) == static_cast<const void*>(to.data)) return;  // it was added to in place
    for (int64_t r = 0; r < level_rows(head_.tree.tokens, l); ++r)
      for (int64_t c = 0; c < channels; ++c) narrow(from.at(r, c), &to.at(r, c));
  }

  // da_l = sum <dq, q>, and the factor a_l that dq lacks.
  void weigh_queries(int l) const {
    const T a = head_.level_weight(l);
    T sum = 0;
    for (int64_t r = 0; r < level_rows(head_.tree.tokens, l); ++r) {
      T* dq = &dq_[l].at(r, 0);
      if (dlevels_ != nullptr && head_.is_real(l, r))
        for (int64_t c = 0; c < p_.head_size; ++c) sum += dq[c] * widen(head_.q[l].at(r, c));
      for (int64_t c = 0; c < p_.head_size; ++c) dq[c] *= a;
    }
    if (dlevels_ != nullptr) dlevels_[l] = sum;
  }

 public:
  // The weights of the levels; gradients that could not be added to in place; those of weights and kappa.
  void write_leaves() const {
    for (int l = 0; l < p_.levels; ++l) {
      if (p_.level_weights != nullptr) weigh_queries(l);
      write(dq_[l], g_.dq[l], head_.h, l, p_.head_size);
      if (last_) write(dk_[l], g_.dk[l], head_.key_head, l, p_.head_size);
    }
    if (last_) write(dv_, g_.dv, head_.key_head, 0, p_.value_size);
    auto add_numbers = [&](const View& view, auto number) {
      if (view.data == nullptr) return;
      const Rows<T> to = head_.template leaves<T>(view, head_.key_head);
      for (int64_t t = 0; t < head_.tree.tokens; ++t) to.at(t, 0) = (first_ ? T(0) : to.at(t, 0)) + number(t);
    };
    add_numbers(g_.dweights, [&](int64_t t) { return head_.weight_of(t) > T(0) ? s_.leaf_dweight[t] : T(0); });
    add_numbers(g_.dkey_bias, [&](int64_t t) { return s_.leaf_dkappa[t]; });
  }

 private:
  const HsaHead<S>& head_;
  const HsaProblem& p_;
  const HsaGradients& g_;
  HsaBackwardSpace<T> s_;
  Nodes<T>& nodes_;
  T *dpositions_, *dlevels_;
  bool first_, last_;  // of the query heads that share a key head
  Rows<const S> dout_;
  Rows<T> dq_[kMaxLevels], dk_[kMaxLevels], dv_;
  LevelAxis queries_{};
  DenseRows<T> q_[kMaxLevels], y_;
};

// to[h] = the sum over the sequences of from[n][h], in order; `size` numbers each.
template <class T>
void sum_over_sequences(const T* from, const HsaProblem& p, int64_t size, void* to) {
  memset(to, 0, sizeof(T) * p.heads * size);
  for (int64_t n = 0; n < p.sequences; ++n)
    add_to(static_cast<T*>(to), from + n * p.heads * size, T(1), p.heads * size);
}

template <class S>
bool has_dense_gradients(const HsaProblem& p, const HsaGradients& g) {
  bool dense = sizeof(S) == sizeof(typename Compute<S>::Type) && g.dv.stride[3] == 1;
  for (int l = 0; l < p.levels; ++l) dense = dense && g.dq[l].stride[3] == 1 && g.dk[l].stride[3] == 1;
  return dense;
}

template <class S>
bool backward(const HsaProblem& p, const HsaGradients& g, int threads) {
  using T = typename Compute<S>::Type;
  const LargestTree largest(p);
  const int64_t families = largest.families, tokens = largest.tokens;
  const int64_t gradient_tokens = has_dense_gradients<S>(p, g) ? 0 : tokens;
  Arena measure_shared(nullptr), measure_own(nullptr);
  HsaBackwardSpace<T> sized(p, families, tokens, gradient_tokens, measure_shared, measure_own);
  const int64_t table = p.kinds * p.places * p.places;
  const int64_t items = p.sequences * p.key_heads, heads = p.sequences * p.heads, group = p.heads / p.key_heads;
  // Families that add to the same numbers, a position table or a coarse row, do so in a fixed order: on one thread.
  const bool by_family = items < threads && g.dpositions == nullptr && p.levels == 1;
  const Workspace shared(measure_shared.used(), by_family ? 1 : threads), own(measure_own.used(), threads);
  const int64_t tables_size = g.dpositions == nullptr ? 0 : heads * table, levels_size = heads * p.levels;
  const Workspace sums((tables_size + levels_size) * static_cast<int64_t>(sizeof(T)), 1);
  if (!shared.ok() || !own.ok() || !sums.ok()) return false;
  T* tables = static_cast<T*>(sums.slice(0));
  T* levels = tables + tables_size;
  memset(tables, 0, sizeof(T) * (tables_size + levels_size));

  auto run_head = [&](int64_t n, int64_t h, int shared_slice, int first_thread, int inner_threads) {
    const HsaHead<S> head(p, n, h);
    if (head.tree.families == 0) return;
    auto space_of = [&](int thread) {
      Arena shared_arena(shared.slice(shared_slice)), own_arena(own.slice(first_thread + thread));
      return HsaBackwardSpace<T>(p, families, tokens, gradient_tokens, shared_arena, own_arena);
    };
    auto pass_of = [&](int thread) {
      const int64_t at = n * p.heads + h;
      return HsaBackward<S>(head, g, g.dpositions == nullptr ? nullptr : tables + at * table,
                            g.dlevel_weights == nullptr ? nullptr : levels + at * p.levels, space_of(thread));
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
  auto run = [&](int64_t item, int slice, int first_thread, int inner_threads) {
    const int64_t n = item / p.key_heads, key_head = item % p.key_heads;
    for (int64_t h = key_head * group; h < (key_head + 1) * group; ++h)
      run_head(n, h, slice, first_thread, inner_threads);
  };
  if (by_family) {
    for (int64_t item = 0; item < items; ++item) run(item, 0, 0, threads);
  } else {
    parallel_items(items, threads, [&](int64_t item, int thread) { run(item, thread, thread, 1); });
  }
  if (g.dpositions != nullptr) sum_over_sequences(tables, p, table, g.dpositions);
  if (g.dlevel_weights != nullptr) sum_over_sequences(levels, p, p.levels, g.dlevel_weights);
  return true;
}

}  // namespace

bool hsa_backward_cpu(const HsaProblem& p, const HsaGradients& g, int threads) {
  return with_storage(p.dtype, [&](auto storage) { return backward<decltype(storage)>(p, g, threads); });
}

}  // namespace strata::STRATA_ISA
