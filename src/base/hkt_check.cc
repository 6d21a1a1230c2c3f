#include "base/hkt_check.h"

#include <algorithm>
#include <cmath>

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

constexpr int64_t kMaxTokens = int64_t{1} << 30;

Status check_tokens(const char* name, int64_t tokens) {
  if (tokens >= 0 && tokens <= kMaxTokens) return {};
  return invalid(name, ": expected 0 to 2^30, got ", tokens);
}

Status check_lengths(const char* name, const int64_t* lengths, int64_t batch, int64_t tokens, On on) {
  for (int64_t b = 0; on == On::kHost && lengths != nullptr && b < batch; ++b) {
    if (lengths[b] < 0 || lengths[b] > tokens) {
      return invalid(name, ": expected 0 to tokens = ", tokens, ", got ", lengths[b], " for sequence ", b);
    }
  }
  return {};
}

// p is complete.
Status check_packed(const HktProblem& p) {
  const bool packed = p.v.begins != nullptr;
  for (int l = 0; l < p.levels; ++l) {
    if ((p.q[l].begins != nullptr) != packed || (p.k[l].begins != nullptr) != packed)
      return invalid("begins: expected all views of q, k and v to be packed or none, got a mix at level ", l);
  }
  if (!packed) return {};
  if (p.bias.data != nullptr)
    return invalid("bias: expected none with packed sequences; call once per sequence, or pad them");
  if (p.lengths == nullptr || p.key_lengths == nullptr)
    return invalid("lengths: expected those of all packed sequences, got null");
  if (p.packed_rows < 0 || p.packed_key_rows < 0)
    return invalid("packed_rows: expected 0 or more, got ", p.packed_rows, " and packed_key_rows ", p.packed_key_rows);
  return {};
}

Status check_slopes(const HktProblem& p, On on) {
  if (p.slopes == nullptr || on == On::kDevice) return {};
  for (int64_t h = 0; h < p.heads; ++h) {
    const double slope =
        p.dtype == DType::kFloat64 ? static_cast<const double*>(p.slopes)[h] : static_cast<const float*>(p.slopes)[h];
    if (!std::isfinite(slope)) return invalid("slopes: expected finite numbers, got ", slope, " for head ", h);
  }
  return {};
}

// Rings hold the rows of all visible tokens.
Status check_slots(const HktDecode& d, int64_t b) {
  const int64_t length = d.lengths[b];
  if (length < 0) return invalid("lengths: expected 0 or more, got ", length, " for sequence ", b);
  const int64_t first = d.window < 0 ? 0 : std::max<int64_t>(0, length - 1 - d.window);
  if (d.value_slots > 0 && d.value_slots < length - first)
    return invalid("lengths: ", length, " tokens, of which ", length - first,
                   " are visible, need as many cached values, got ", d.value_slots, " slots");
  for (int l = 0; l < d.levels; ++l) {
    const int64_t rows = hkt_level_tokens(length, l) - (first >> l);
    if (d.key_slots[l] > 0 && d.key_slots[l] < rows)
      return invalid("lengths: ", length, " tokens, of which ", length - first, " are visible, need ", rows,
                     " cached keys on level ", l, ", got ", d.key_slots[l], " slots");
  }
  return {};
}

}  // namespace

HktProblem hkt_complete(HktProblem p) {
  if (p.key_tokens < 0) {
    p.key_tokens = p.tokens;
    p.key_lengths = p.lengths;
    p.packed_key_rows = p.packed_rows;
  }
  const int64_t all = std::max({int64_t{0}, p.tokens - 1, p.key_tokens - 1});  // tokens are not further apart
  p.window_left = p.window_left < 0 ? all : std::min(p.window_left, all);
  p.window_right = p.window_right < 0 ? all : std::min(p.window_right, all);
  if (p.causal) p.window_right = 0;
  return p;
}

Status hkt_check(const HktProblem& problem, const HktOutputs& outputs, On on) {
  ++argument_checks();
  const HktProblem p = hkt_complete(problem);
  if (Status s = check_shape(p, on); !s.ok()) return s;
  if (Status s = check_tokens("tokens", p.tokens); !s.ok()) return s;
  if (Status s = check_tokens("key_tokens", p.key_tokens); !s.ok()) return s;
  if (Status s = check_weights(p, on); !s.ok()) return s;
  if (Status s = check_dropout(p.dropout); !s.ok()) return s;
  if (Status s = check_slopes(p, on); !s.ok()) return s;
  if (hkt_is_empty(p)) return {};
  if (Status s = check_packed(p); !s.ok()) return s;
  if (p.tokens > 0 && p.key_tokens > 0) {
    if (Status s = check_levels_present(p); !s.ok()) return s;
    if (Status s = check_present({{"v", p.v.data}}); !s.ok()) return s;
  }
  if (p.tokens > 0) {
    if (Status s = check_present({{"out", outputs.out.data}, {"lse", outputs.lse}}); !s.ok()) return s;
  }
  if (Status s = check_lengths("lengths", p.lengths, p.batch, p.tokens, on); !s.ok()) return s;
  return check_lengths("key_lengths", p.key_lengths, p.batch, p.key_tokens, on);
}

Status hkt_check(const HktGradients& g, const HktProblem& problem) {
  const HktProblem p = hkt_complete(problem);
  if (Status s = check_present({{"dweights", g.dweights}}); !s.ok()) return s;
  if (hkt_is_empty(p)) return {};
  if (p.tokens > 0 && p.key_tokens > 0) {
    if (Status s = check_present({{"dout", g.dout.data}, {"dv", g.dv.data}}); !s.ok()) return s;
    if (Status s = check_level_gradients_present(g, p.levels); !s.ok()) return s;
  }
  if (g.dbias.data == nullptr) return {};
  if (p.bias.data == nullptr) return invalid("dbias: expected null, because there is no bias");
  if ((p.tokens > 1 && g.dbias.stride[2] == 0) || (p.key_tokens > 1 && g.dbias.stride[3] == 0)) {
    return invalid("dbias: expected non-zero token strides, got ", g.dbias.stride[2], " and ", g.dbias.stride[3],
                   "; only the batch and head axes may be summed over, reduce the others after the call");
  }
  return {};
}

Status hkt_check(const HktDecode& d, On on) {
  if (Status s = check_shape(d, on); !s.ok()) return s;
  if (Status s = check_weights(d, on); !s.ok()) return s;
  for (int l = 0; l < d.levels; ++l) {
    if (d.query_slots[l] < 0 || d.key_slots[l] < 0 || d.value_slots < 0)
      return invalid("query_slots, key_slots, value_slots: expected 0 or more, got ", d.query_slots[l], ", ",
                     d.key_slots[l], " and ", d.value_slots, " at level ", l);
  }
  if (d.batch == 0) return {};
  if (Status s = check_levels_present(d); !s.ok()) return s;
  if (Status s = check_present({{"v", d.v.data}, {"out", d.out.data}, {"lengths", d.lengths}}); !s.ok()) return s;
  for (int64_t b = 0; on == On::kHost && b < d.batch; ++b) {
    if (Status s = check_slots(d, b); !s.ok()) return s;
  }
  return {};
}

Status hkt_check(const HktAppend& a, On on) {
  if (a.batch < 0) return invalid("batch: expected 0 or more, got ", a.batch);
  if (Status s = check_range("levels", a.levels, 1, kMaxLevels); !s.ok()) return s;
  if (Status s = check_heads(a.head_size, std::max(1, a.value_size), 1.0); !s.ok()) return s;
  if (Status s = check_grouped_heads(a); !s.ok()) return s;
  if (Status s = check_dtype(a.dtype, on); !s.ok()) return s;
  if (a.batch == 0) return {};
  if (Status s = check_levels_present(a); !s.ok()) return s;
  if (Status s = check_present({{"lengths", a.lengths}}); !s.ok()) return s;
  for (int l = 0; l < a.levels; ++l) {
    if (a.queries[l].data == nullptr || a.keys[l].data == nullptr || a.query_slots[l] < 1 || a.key_slots[l] < 1)
      return invalid("queries, keys: expected rings of 1 or more slots on all levels, got ", a.query_slots[l], " and ",
                     a.key_slots[l], " slots or null on level ", l);
  }
  if (a.v.data != nullptr && (a.values.data == nullptr || a.value_slots < 1))
    return invalid("values: expected a ring of 1 or more slots with v, got ", a.value_slots, " slots or null");
  for (int64_t b = 0; on == On::kHost && b < a.batch; ++b) {
    if (a.lengths[b] < 0) return invalid("lengths: expected 0 or more, got ", a.lengths[b], " for sequence ", b);
  }
  return {};
}

}  // namespace strata
