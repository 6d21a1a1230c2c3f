#include "base/hsa_check.h"

#include <cmath>

#include "base/check.h"
#include "base/check_count.h"
#include "base/level_check.h"
#include "base/text.h"

namespace strata {
namespace {

double weight_at(const HsaProblem& p, int64_t n, int64_t t) {
  const int64_t at = p.batch_of[n] * p.weights.stride[0] + (p.first_token[n] + t) * p.weights.stride[2];
  return p.dtype == DType::kFloat64 ? static_cast<const double*>(p.weights.data)[at]
                                    : static_cast<const float*>(p.weights.data)[at];
}

Status check_tree(const HsaProblem& p, int64_t n) {
  const TreeView& tree = p.trees[n];
  if (tree.tokens > 0 && tree.families == 0)
    return invalid("trees[", n, "]: has tokens but no root; build it with Tree");
  // What memory safety needs. A Tree guarantees it, but a view may have been filled in by hand.
  int64_t next_family = 1, tokens = 0;
  for (int64_t f = 0; f < tree.families; ++f) {
    if (tree.child_begin[f] < 0 || tree.child_begin[f] >= tree.child_begin[f + 1] ||
        tree.child_begin[f + 1] > tree.child_begin[tree.families]) {
      return invalid("trees[", n, "]: family ", f, " has no children, or its offsets decrease; build it with Tree");
    }
    for (int32_t at = tree.child_begin[f]; at < tree.child_begin[f + 1]; ++at) {
      const int32_t child = tree.children[at];
      if (child < 0 ? ~child != next_family++ : child >= tree.tokens) {
        return invalid("trees[", n, "]: child ", at - tree.child_begin[f], " of family ", f,
                       " is out of order or range; build it with Tree");
      }
      tokens += child >= 0;
    }
  }
  if (tree.families > 0 && (next_family != tree.families || tokens != tree.tokens)) {
    return invalid("trees[", n, "]: ", next_family, " families and ", tokens,
                   " tokens are reached from the root, expected ", tree.families, " and ", tree.tokens,
                   "; build it with Tree");
  }
  if (p.batch_of[n] < 0 || p.first_token[n] < 0) {
    return invalid("batch_of, first_token: expected 0 or more, got ", p.batch_of[n], " and ", p.first_token[n],
                   " for sequence ", n);
  }
  return {};
}

// Position tables large enough for the families of a sequence, and weights that are finite and not negative.
Status check_numbers(const HsaProblem& p, int64_t n) {
  const TreeView& tree = p.trees[n];
  if (p.positions != nullptr) {
    for (int64_t f = 0; f < tree.families; ++f) {
      const int64_t size = tree.child_begin[f + 1] - tree.child_begin[f];
      if (tree.kind[f] >= p.kinds) {
        return invalid("positions: family ", f, " of sequence ", n, " needs table ", tree.kind[f], ", positions has ",
                       p.kinds, " tables; use a larger array or make the family a set");
      }
      if (tree.kind[f] >= 0 && size > p.places) {
        return invalid("positions: family ", f, " of sequence ", n, " has ", size, " children, positions has ",
                       p.places, " places; use a larger array or make the family a set");
      }
    }
  }
  if (p.weights.data != nullptr) {
    for (int64_t t = 0; t < tree.tokens; ++t) {
      const double w = weight_at(p, n, t);
      if (!(w >= 0) || std::isinf(w)) {
        return invalid("weights: expected finite numbers of 0 or more, got ", w, " for token ", t, " of sequence ", n);
      }
    }
  }
  return {};
}

}  // namespace

Status hsa_check_trees(const HsaProblem& p) {
  for (int64_t n = 0; n < p.sequences; ++n) {
    if (Status s = check_tree(p, n); !s.ok()) return s;
  }
  return {};
}

Status hsa_check(const HsaProblem& p, On on) {
  ++argument_checks();
  if (p.sequences < 0) return invalid("sequences: expected 0 or more, got ", p.sequences);
  if (Status s = check_range("levels", p.levels, 1, kMaxLevels); !s.ok()) return s;
  if (Status s = check_grouped_heads(p); !s.ok()) return s;
  if (Status s = check_heads(p.head_size, p.value_size, p.scale); !s.ok()) return s;
  if (Status s = check_dtype(p.dtype, on); !s.ok()) return s;
  if (Status s = check_threads(p.threads); !s.ok()) return s;
  if (Status s = check_level_weights(p.level_weights, p.dtype, p.heads, p.levels, on); !s.ok()) return s;
  if (p.sequences == 0) return {};
  Status present = check_present({{"trees", p.trees}, {"batch_of", p.batch_of}, {"first_token", p.first_token}});
  if (!present.ok()) return present;
  int64_t tokens = 0;
  for (int64_t n = 0; n < p.sequences; ++n) {
    tokens += p.trees[n].tokens;
    if (on == On::kDevice) continue;  // its trees were checked when the plan was made
    if (Status s = check_tree(p, n); !s.ok()) return s;
    if (Status s = check_numbers(p, n); !s.ok()) return s;
  }
  if (tokens == 0) return {};
  for (int l = 1; l < p.levels; ++l) {
    if (p.first_row[l] == nullptr) return check_present({{text("first_row[", l, "]"), nullptr}});
  }
  return check_levels_present(p);
}

Status hsa_check(const HsaGradients& g, const HsaProblem& p) {
  int64_t tokens = 0;
  for (int64_t n = 0; n < p.sequences; ++n) tokens += p.trees[n].tokens;
  if (g.dpositions != nullptr && p.positions == nullptr)
    return invalid("dpositions: expected null, because there are no positions");
  if (g.dweights.data != nullptr && p.weights.data == nullptr)
    return invalid("dweights: expected null, because there are no weights");
  if (g.dkey_bias.data != nullptr && p.key_bias.data == nullptr)
    return invalid("dkey_bias: expected null, because there is no key_bias");
  if (g.dlevel_weights != nullptr && p.level_weights == nullptr)
    return invalid("dlevel_weights: expected null, because there are no level_weights");
  if (tokens == 0) return {};
  if (Status s = check_level_gradients_present(g, p.levels); !s.ok()) return s;
  return check_present({{"v", p.v.data}, {"dout", g.dout.data}, {"dv", g.dv.data}});
}

}  // namespace strata
