#include "base/hkt_check.h"

#include "base/check.h"
#include "base/check_count.h"
#include "base/level_check.h"
#include "base/text.h"

namespace strata {
namespace {

// What HktProblem and HktDecode have in common.
template <class Problem>
Status check_shape(const Problem& p, On on) {
  if (p.batch < 0) return invalid("batch: expected 0 or more, got ", p.batch);
  if (Status s = check_range("levels", p.levels, 1, kMaxLevels); !s.ok()) return s;
  if (Status s = check_heads(p.head_size, p.value_size, p.scale); !s.ok()) return s;
  if (Status s = check_grouped_heads(p); !s.ok()) return s;
  if (Status s = check_dtype(p.dtype, on); !s.ok()) return s;
  return check_threads(p.threads);
}

template <class Problem>
Status check_weights(const Problem& p, On on) {
  if (Status s = check_present({{"weights", p.weights}}); !s.ok()) return s;
  if (on == On::kDevice) return {};
  return check_finite_weights("weights", p.weights, p.dtype, p.heads, p.levels);
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
  if (Status s = check_level_gradients_present(g, p.levels); !s.ok()) return s;
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
