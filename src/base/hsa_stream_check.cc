#include "base/hsa_stream_check.h"

#include "base/check.h"
#include "base/check_count.h"
#include "base/level_check.h"
#include "base/text.h"

namespace strata {
namespace {

// What HsaStreamProblem and HsaStreamStep have in common.
template <class Problem>
Status check_shape(const Problem& p) {
  if (Status s = check_range("branching", p.branching, 2, kMaxBranching); !s.ok()) return s;
  if (p.near < 1) return invalid("near: expected 1 or more families, got ", p.near, "; 1 is a token's own family");
  if (Status s = check_range("levels", p.levels, 1, kMaxLevels); !s.ok()) return s;
  if (Status s = check_grouped_heads(p); !s.ok()) return s;
  return check_heads(p.head_size, p.value_size, p.scale);
}

constexpr int64_t kMaxStreamTokens = int64_t{1} << 30;

Status check_packed(const HsaStreamProblem& p, On on) {
  const bool packed = p.lengths != nullptr;
  auto fits = [&](const ConstView& view) { return view.data == nullptr || (view.begins != nullptr) == packed; };
  for (int l = 0; l < p.levels; ++l) {
    if (!fits(p.q[l]) || !fits(p.k[l]))
      return invalid("begins: expected those of all views with lengths, and of none without, got others at level ", l);
  }
  if (!fits(p.v) || !fits(p.weights) || !fits(p.key_bias))
    return invalid("begins: expected those of v, weights and key_bias with lengths, and none without");
  for (int64_t b = 0; packed && on == On::kHost && b < p.batch; ++b) {
    if (p.lengths[b] < 0 || p.lengths[b] > p.tokens)
      return invalid("lengths: expected 0 to tokens = ", p.tokens, ", got ", p.lengths[b], " for sequence ", b);
  }
  return {};
}

// All but the arrays.
Status check_problem(const HsaStreamProblem& p, On on) {
  if (Status s = check_shape(p); !s.ok()) return s;
  if (p.batch < 0 || p.tokens < 0 || p.tokens > kMaxStreamTokens) {
    return invalid("batch, tokens: expected 0 to 2^30, got ", p.batch, " and ", p.tokens);
  }
  if (Status s = check_dropout(p.dropout); !s.ok()) return s;
  if (Status s = check_packed(p, on); !s.ok()) return s;
  if (Status s = check_dtype(p.dtype, on); !s.ok()) return s;
  if (Status s = check_threads(p.threads); !s.ok()) return s;
  return check_level_weights(p.level_weights, p.dtype, p.heads, p.levels, on);
}

}  // namespace

Status hsa_stream_check(const HsaStreamProblem& p, const HsaStreamOutputs& outputs, On on) {
  ++argument_checks();
  if (Status s = check_problem(p, on); !s.ok() || p.batch * p.tokens == 0) return s;
  if (Status s = check_levels_present(p); !s.ok()) return s;
  return check_present({{"v", p.v.data}, {"out", outputs.out.data}, {"lse", outputs.lse}});
}

Status hsa_stream_check_scores(const HsaStreamProblem& p, const void* bound, On on) {
  if (p.lengths != nullptr)
    return invalid("lengths: expected none, as bounds of packed sequences are not computed; call once for each");
  if (Status s = check_problem(p, on); !s.ok() || p.batch * p.tokens == 0) return s;
  if (Status s = check_levels_present(p); !s.ok()) return s;
  return check_present({{"bound", bound}});
}

Status hsa_stream_check(const HsaStreamGradients& g, const HsaStreamProblem& p) {
  if (g.dpositions != nullptr && p.positions == nullptr)
    return invalid("dpositions: expected null, because there are no positions");
  if (g.dkey_bias.data != nullptr && p.key_bias.data == nullptr)
    return invalid("dkey_bias: expected null, because there is no key_bias");
  if (g.dweights.data != nullptr && p.weights.data == nullptr)
    return invalid("dweights: expected null, because there are no weights");
  if (g.dlevel_weights != nullptr && p.level_weights == nullptr)
    return invalid("dlevel_weights: expected null, because there are no level_weights");
  if (p.batch * p.tokens == 0) return {};
  if (Status s = check_level_gradients_present(g, p.levels); !s.ok()) return s;
  return check_present({{"dout", g.dout.data}, {"dv", g.dv.data}});
}

Status hsa_stream_check(const HsaStreamStep& s) {
  if (Status status = check_shape(s); !status.ok()) return status;
  if (s.dtype != DType::kFloat32 && s.dtype != DType::kFloat64) {
    return invalid("dtype: the decoding step expects kFloat32 or kFloat64, got ", static_cast<int>(s.dtype));
  }
  if (s.levels > 1) {
    if (Status status = check_present({{"level_weights", s.level_weights}}); !status.ok()) return status;
  }
  if (s.batch == 0) return {};
  return check_present({{"q", s.q},
                        {"k", s.k},
                        {"v", s.v},
                        {"keys", s.keys},
                        {"values", s.values},
                        {"kappas", s.kappas},
                        {"masses", s.masses},
                        {"lengths", s.lengths},
                        {"out", s.out}});
}

}  // namespace strata
