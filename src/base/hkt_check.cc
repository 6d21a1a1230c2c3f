#include "base/hkt_check.h"

#include <cmath>

#include "base/check.h"
#include "base/check_count.h"
#include "base/text.h"

namespace strata {
namespace {

// What HktProblem and HktDecode have in common.
template <class Problem>
Status check_shape(const Problem& p, On on) {
  if (p.batch < 0) return invalid("batch: expected 0 or more, got ", p.batch);
  if (Status s = check_range("levels", p.levels, 1, kMaxLevels); !s.ok()) return s;
  if (Status s = check_heads(p.head_size, p.value_size, p.scale); !s.ok()) return s;
  if (p.heads < 1 || p.key_heads < 1 || p.heads % p.key_heads != 0) {
    return invalid("heads: expected a positive multiple of key_heads, got heads = ", p.heads,
                   " and key_heads = ", p.key_heads, "; each key head serves heads / key_heads query heads");
  }
  if (Status s = check_dtype(p.dtype, on); !s.ok()) return s;
  return check_threads(p.threads);
}

template <class Problem>
Status check_weights(const Problem& p, On on) {
  if (Status s = check_present({{"weights", p.weights}}); !s.ok()) return s;
  if (on == On::kDevice) return {};
  for (int64_t h = 0; h < p.heads; ++h) {
    for (int l = 0; l < p.levels; ++l) {
      const int64_t at = h * p.levels + l;
      const double a = p.dtype == DType::kFloat64 ? static_cast<const double*>(p.weights)[at]
                                                  : static_cast<const float*>(p.weights)[at];
      if (!std::isfinite(a)) {
        return invalid("weights: expected finite numbers, got ", a, " for head ", h, ", level ", l,
                       "; they are softmax(theta) over the levels, so look for a non-finite theta");
      }
    }
  }
  return {};
}

template <class Problem>
Status check_levels_present(const Problem& p) {
  for (int l = 0; l < p.levels; ++l) {
    if (p.q[l].data != nullptr && p.k[l].data != nullptr) continue;  // names are made for messages only
    return check_present({{text("q[", l, "]"), p.q[l].data}, {text("k[", l, "]"), p.k[l].data}});
  }
  return {};
}

}  // namespace

Status hkt_check(const HktProblem& p, const HktOutputs& outputs, On on) {
  ++argument_checks();
  if (Status s = check_shape(p, on); !s.ok()) return s;
  if (p.tokens < 0 || p.tokens > (int64_t{1} << 31)) {
    return invalid("tokens: expected 0 to 2^31, got ", p.tokens);
  }
  if (Status s = check_weights(p, on); !s.ok()) return s;
  if (p.batch == 0 || p.tokens == 0) return {};
  if (Status s = check_levels_present(p); !s.ok()) return s;
  if (Status s = check_present({{"v", p.v.data}, {"out", outputs.out.data}, {"lse", outputs.lse}}); !s.ok()) return s;
  for (int64_t b = 0; on == On::kHost && p.lengths != nullptr && b < p.batch; ++b) {
    if (p.lengths[b] < 0 || p.lengths[b] > p.tokens) {
      return invalid("lengths: expected 0 to tokens = ", p.tokens, ", got ", p.lengths[b], " for sequence ", b);
    }
  }
  return {};
}

Status hkt_check(const HktGradients& g, const HktProblem& p) {
  if (Status s = check_present({{"dweights", g.dweights}}); !s.ok()) return s;
  if (p.batch == 0 || p.tokens == 0) return {};
  if (Status s = check_present({{"dout", g.dout.data}, {"dv", g.dv.data}}); !s.ok()) return s;
  for (int l = 0; l < p.levels; ++l) {
    Status s = check_present({{text("dq[", l, "]"), g.dq[l].data}, {text("dk[", l, "]"), g.dk[l].data}});
    if (!s.ok()) return s;
  }
  if (g.dbias.data == nullptr) return {};
  if (p.bias.data == nullptr) return invalid("dbias: expected null, because there is no bias");
  if (p.tokens > 1 && (g.dbias.stride[2] == 0 || g.dbias.stride[3] == 0)) {
    return invalid("dbias: expected non-zero token strides, got ", g.dbias.stride[2], " and ", g.dbias.stride[3],
                   "; only the batch and head axes may be summed over, reduce the others after the call");
  }
  return {};
}

Status hkt_check(const HktDecode& d) {
  if (Status s = check_shape(d, On::kHost); !s.ok()) return s;
  if (Status s = check_weights(d, On::kHost); !s.ok()) return s;
  if (d.batch == 0) return {};
  if (Status s = check_levels_present(d); !s.ok()) return s;
  if (Status s = check_present({{"v", d.v.data}, {"out", d.out.data}, {"lengths", d.lengths}}); !s.ok()) return s;
  for (int64_t b = 0; b < d.batch; ++b) {
    if (d.lengths[b] < 0) return invalid("lengths: expected 0 or more, got ", d.lengths[b], " for sequence ", b);
  }
  return {};
}

}  // namespace strata
