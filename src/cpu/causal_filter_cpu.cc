// The causal filter (include/strata/pyramid.h). Depthwise it is bound by memory: every row is read and written once, 64
// channels at a time in registers. Sums are taken in an order that does not depend on the number of threads.
#include "cpu/causal_filter_cpu.h"

#include "cpu/parallel.h"
#include "cpu/storage.h"

namespace strata::STRATA_ISA {
namespace {

constexpr int64_t kBlock = 64;     // channels
constexpr int64_t kItemRows = 64;  // rows of a work item
constexpr int64_t kParts = 16;     // partial sums of dweight

int64_t items_of(const CausalFilter& f, int64_t rows) { return f.batch * ((rows + kItemRows - 1) / kItemRows); }

// Calls row(b, t) for the rows of a work item, of sequences with `rows` rows.
template <class Row>
void each_row(int64_t item, int64_t rows, const Row& row) {
  const int64_t chunks = (rows + kItemRows - 1) / kItemRows, b = item / chunks, first = item % chunks * kItemRows;
  for (int64_t t = first; t < min(rows, first + kItemRows); ++t) row(b, t);
}

// The taps of output m that fall on real inputs: r = 0 .. min(taps, stride m + 1) - 1.
int64_t taps_inside(const CausalFilter& f, int64_t m) { return min(f.taps, f.stride * m + 1); }

// acc[c] += w[c] x[c] over `count` channels.
template <class S, class T>
inline void multiply_add(T* acc, const S* w, const S* x, int64_t count) {
  if (count == kBlock) {
    for (int64_t c = 0; c < kBlock; ++c) acc[c] += widen(w[c]) * widen(x[c]);
  } else {
    for (int64_t c = 0; c < count; ++c) acc[c] += widen(w[c]) * widen(x[c]);
  }
}
template <class S, class T>
inline void store_block(const T* acc, S* to, int64_t count) {
  for (int64_t c = 0; c < count; ++c) narrow(acc[c], to + c);
}

template <class S>
struct Filter {
  using T = typename Compute<S>::Type;
  const CausalFilter& f;
  int64_t rows = (f.tokens + f.stride - 1) / f.stride, C = f.channels;
  const S* x = static_cast<const S*>(f.x);
  const S* weight = static_cast<const S*>(f.weight);

  const S* input(int64_t b, int64_t t) const { return x + (b * f.tokens + t) * C; }

  void forward(int64_t b, int64_t m, S* y) const {
    for (int64_t c0 = 0; c0 < C; c0 += kBlock) {
      const int64_t count = min(kBlock, C - c0);
      T acc[kBlock] = {};
      for (int64_t r = 0; r < taps_inside(f, m); ++r) {
        const S* in = input(b, f.stride * m - r);
        if (!f.dense) {
          multiply_add(acc, weight + r * C + c0, in + c0, count);
          continue;
        }
        for (int64_t o = 0; o < count; ++o) {
          const S* w = weight + (r * C + c0 + o) * C;
          T sum = 0;
          for (int64_t c = 0; c < C; ++c) sum += widen(w[c]) * widen(in[c]);
          acc[o] += sum;
        }
      }
      store_block(acc, y + c0, count);
    }
  }

  // dx_t = sum over r with t + r = stride m of W_r^T dy_m.
  void input_gradient(int64_t b, int64_t t, const S* dy, S* dx) const {
    for (int64_t c0 = 0; c0 < C; c0 += kBlock) {
      const int64_t count = min(kBlock, C - c0);
      T acc[kBlock] = {};
      for (int64_t r = 0; r < f.taps; ++r) {
        const int64_t m = (t + r) / f.stride;
        if ((t + r) % f.stride != 0 || m >= rows) continue;
        const S* from = dy + (b * rows + m) * C;
        if (!f.dense) {
          multiply_add(acc, weight + r * C + c0, from + c0, count);
          continue;
        }
        for (int64_t o = 0; o < C; ++o) {
          const S* w = weight + (r * C + o) * C + c0;
          const T factor = widen(from[o]);
          for (int64_t c = 0; c < count; ++c) acc[c] += widen(w[c]) * factor;
        }
      }
      store_block(acc, dx + c0, count);
    }
  }

  // sum of dy_m[o] x_{stride m - r} over rows `first` .. `last` - 1 of all sequences, counted through: one row of dW_r,
  // or with dy's own channels (o < 0) its diagonal.
  void weight_gradient(int64_t r, int64_t o, int64_t first, int64_t last, const S* dy, int64_t c0, int64_t count,
                       T* acc) const {
    for (int64_t at = first; at < last; ++at) {
      const int64_t b = at / rows, m = at % rows, t = f.stride * m - r;
      if (t < 0) continue;
      const S* in = input(b, t) + c0;
      if (o < 0) {
        multiply_add(acc, dy + at * C + c0, in, count);
      } else {
        const T factor = widen(dy[at * C + o]);
        for (int64_t c = 0; c < count; ++c) acc[c] += factor * widen(in[c]);
      }
    }
  }
};

template <class S>
bool forward(const CausalFilter& f, void* y, int threads) {
  const Filter<S> filter{f};
  parallel_items(items_of(f, filter.rows), threads, [&](int64_t item, int) {
    each_row(item, filter.rows, [&](int64_t b, int64_t m) {
      filter.forward(b, m, static_cast<S*>(y) + (b * filter.rows + m) * f.channels);
    });
  });
  return true;
}

// Dense: a work item per row of dweight. Depthwise there are few rows, so that the sum over tokens has kParts parts.
template <class S>
bool weight_gradients(const Filter<S>& filter, const S* dy, S* dweight, int threads) {
  using T = typename Compute<S>::Type;
  const CausalFilter& f = filter.f;
  const int64_t C = f.channels, total = f.batch * filter.rows;
  if (f.dense) {
    parallel_items(f.taps * C, threads, [&](int64_t item, int) {
      for (int64_t c0 = 0; c0 < C; c0 += kBlock) {
        T acc[kBlock] = {};
        const int64_t count = min(kBlock, C - c0);
        filter.weight_gradient(item / C, item % C, 0, total, dy, c0, count, acc);
        store_block(acc, dweight + item * C + c0, count);
      }
    });
    return true;
  }
  const Workspace parts(static_cast<int64_t>(sizeof(T)) * f.taps * C, kParts);
  if (!parts.ok()) return false;
  parallel_items(kParts, threads, [&](int64_t part, int) {
    T* sums = static_cast<T*>(parts.slice(part));
    memset(sums, 0, sizeof(T) * f.taps * C);
    for (int64_t r = 0; r < f.taps; ++r) {
      for (int64_t c0 = 0; c0 < C; c0 += kBlock)
        filter.weight_gradient(r, -1, total * part / kParts, total * (part + 1) / kParts, dy, c0, min(kBlock, C - c0),
                               sums + r * C + c0);
    }
  });
  for (int64_t at = 0; at < f.taps * C; ++at) {
    T sum = 0;
    for (int64_t part = 0; part < kParts; ++part) sum += static_cast<const T*>(parts.slice(part))[at];
    narrow(sum, dweight + at);
  }
  return true;
}

template <class S>
bool backward(const CausalFilter& f, const CausalFilterGradients& g, int threads) {
  const Filter<S> filter{f};
  const S* dy = static_cast<const S*>(g.dy);
  parallel_items(items_of(f, f.tokens), threads, [&](int64_t item, int) {
    each_row(item, f.tokens, [&](int64_t b, int64_t t) {
      filter.input_gradient(b, t, dy, static_cast<S*>(g.dx) + (b * f.tokens + t) * f.channels);
    });
  });
  return weight_gradients(filter, dy, static_cast<S*>(g.dweight), threads);
}

}  // namespace

bool causal_filter_forward_cpu(const CausalFilter& f, void* y, int threads) {
  return with_storage(f.dtype, [&](auto storage) { return forward<decltype(storage)>(f, y, threads); });
}

bool causal_filter_backward_cpu(const CausalFilter& f, const CausalFilterGradients& g, int threads) {
  return with_storage(f.dtype, [&](auto storage) { return backward<decltype(storage)>(f, g, threads); });
}

}  // namespace strata::STRATA_ISA
