// The certificate of streaming attention (strata/hsa_stream.h): means and radii height by height, then every row's
// largest bound over the nodes it sees. It reads keys once and multiplies no queries with keys.
#include <omp.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "base/hsa_stream_check.h"
#include "base/stream_nodes.h"
#include "cpu/kernels.h"

namespace strata {
namespace {

template <class C>
C element(const void* data, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::kFloat64:
      return static_cast<C>(static_cast<const double*>(data)[at]);
    case DType::kBFloat16: {
      const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(data)[at]) << 16;
      float x;
      std::memcpy(&x, &bits, sizeof(x));
      return static_cast<C>(x);
    }
    default:
      return static_cast<C>(static_cast<const float*>(data)[at]);
  }
}
int64_t offset(const ConstView& view, int64_t batch, int64_t head, int64_t row) {
  return batch * view.stride[0] + head * view.stride[1] + row * view.stride[2];
}

// The nodes of one height: their masses and means, and for each level and for kappa a radius: no key of a node is
// further from its mean.
template <class C>
struct Nodes {
  int64_t count = 0;
  std::vector<C> mass, mean,
      radius;  // mean: (node, key channels of all levels, then kappa); radius: (node, levels + 1)
};

template <class C>
struct Certificate {
  const HsaStreamProblem& p;
  int64_t width = int64_t{p.levels} * p.head_size + 1;

  Nodes<C> leaves(int64_t batch, int64_t key_head) const {
    Nodes<C> nodes{p.tokens, std::vector<C>(p.tokens, C(1)), std::vector<C>(p.tokens * width, C(0)),
                   std::vector<C>(p.tokens * (p.levels + 1), C(0))};
    for (int64_t t = 0; t < p.tokens; ++t) {
      if (p.weights.data != nullptr)
        nodes.mass[t] = static_cast<const C*>(p.weights.data)[offset(p.weights, batch, 0, t)];
      if (!(nodes.mass[t] > C(0))) continue;  // may hold anything
      C* to = nodes.mean.data() + t * width;
      for (int l = 0; l < p.levels; ++l) {
        const int64_t row = offset(p.k[l], batch, key_head, t >> l);
        for (int c = 0; c < p.head_size; ++c) *to++ = element<C>(p.k[l].data, p.dtype, row + c * p.k[l].stride[3]);
      }
      if (p.key_bias.data != nullptr)
        *to = static_cast<const C*>(p.key_bias.data)[offset(p.key_bias, batch, key_head, t)];
    }
    return nodes;
  }

  Nodes<C> parents(const Nodes<C>& below) const {
    const int64_t b = p.branching, count = (below.count + b - 1) / b;
    Nodes<C> nodes{count, std::vector<C>(count, C(0)), std::vector<C>(count * width, C(0)),
                   std::vector<C>(count * (p.levels + 1), C(0))};
    for (int64_t a = 0; a < count; ++a) {
      const int64_t first = a * b, end = std::min(below.count, first + b);
      for (int64_t c = first; c < end; ++c) nodes.mass[a] += below.mass[c];
      C* mean = nodes.mean.data() + a * width;
      for (int64_t c = first; c < end; ++c) {
        if (!(below.mass[c] > C(0))) continue;
        const C share = below.mass[c] / nodes.mass[a];
        for (int64_t x = 0; x < width; ++x) mean[x] += share * below.mean[c * width + x];
      }
      for (int64_t c = first; c < end; ++c) {
        if (below.mass[c] > C(0)) widen(nodes, a, below, c);
      }
    }
    return nodes;
  }
  // Radii of node a that hold child c as well.
  void widen(Nodes<C>& nodes, int64_t a, const Nodes<C>& below, int64_t c) const {
    const C *mean = nodes.mean.data() + a * width, *child = below.mean.data() + c * width;
    for (int l = 0; l <= p.levels; ++l) {
      const int64_t begin = int64_t{l} * p.head_size, end = l < p.levels ? begin + p.head_size : begin + 1;
      C square = 0;
      for (int64_t x = begin; x < end; ++x) square += (child[x] - mean[x]) * (child[x] - mean[x]);
      C& radius = nodes.radius[a * (p.levels + 1) + l];
      radius = std::max(radius, std::sqrt(square) + below.radius[c * (p.levels + 1) + l]);
    }
  }

  // The bounds of one query head, from the heights above the leaves.
  void bounds(int64_t batch, int64_t head, const std::vector<Nodes<C>>& heights, C* to) const {
    std::vector<C> reach(p.levels + 1, C(1));  // s a_l |q^(l)|; the last is of kappa
    for (int64_t i = 0; i < p.tokens; ++i) {
      for (int l = 0; l < p.levels; ++l) {
        const int64_t row = offset(p.q[l], batch, head, i >> l);
        C square = 0;
        for (int c = 0; c < p.head_size; ++c) {
          const C x = element<C>(p.q[l].data, p.dtype, row + c * p.q[l].stride[3]);
          square += x * x;
        }
        const C a = p.level_weights == nullptr ? C(1) : static_cast<const C*>(p.level_weights)[head * p.levels + l];
        reach[l] = static_cast<C>(std::abs(p.scale)) * a * std::sqrt(square);
      }
      C widest = 0;
      int64_t ancestor = i;
      for (size_t h = 0; h < heights.size(); ++h) {
        ancestor /= p.branching;
        const Nodes<C>& nodes = heights[h];
        seen_nodes(static_cast<int64_t>(h) + 1, ancestor, nodes.count, p.branching, p.near, p.both_sides)
            .each([&](int64_t m) {
              C sum = 0;
              for (int l = 0; l <= p.levels; ++l) sum += reach[l] * nodes.radius[m * (p.levels + 1) + l];
              widest = std::max(widest, sum);
            });
      }
      to[i] = widest * widest / 2;
    }
  }

  void run(int64_t batch, int64_t key_head, C* bound) const {
    const int64_t group = p.heads / p.key_heads;
    std::vector<Nodes<C>> heights;
    for (Nodes<C> below = leaves(batch, key_head); (below.count + p.branching - 1) / p.branching > p.near;
         below = heights.back())
      heights.push_back(parents(below));
    for (int64_t h = key_head * group; h < (key_head + 1) * group; ++h)
      bounds(batch, h, heights, bound + (batch * p.heads + h) * p.tokens);
  }
  // Returns false if there was not enough memory.
  bool run_all(C* bound) const {
    std::atomic<bool> had_memory = true;
#pragma omp parallel for num_threads(threads_or_default(p.threads))
    for (int64_t stream = 0; stream < p.batch * p.key_heads; ++stream) {
      try {
        run(stream / p.key_heads, stream % p.key_heads, bound);
      } catch (const std::bad_alloc&) {
        had_memory = false;
      }
    }
    return had_memory;
  }
};

}  // namespace

Status hsa_stream_certificate(const HsaStreamProblem& p, void* bound) {
  if (Status s = hsa_stream_check_scores(p, bound); !s.ok() || p.batch * p.tokens == 0) return s;
  const bool had_memory = p.dtype == DType::kFloat64 ? Certificate<double>{p}.run_all(static_cast<double*>(bound))
                                                     : Certificate<float>{p}.run_all(static_cast<float*>(bound));
  return kernel_status(had_memory, "the certificate of streaming attention");
}

}  // namespace strata
