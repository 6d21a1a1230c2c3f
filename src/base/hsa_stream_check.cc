#include "base/hsa_stream_check.h"

#include <cmath>
#include <initializer_list>
#include <limits>

#include "base/check_count.h"
#include "base/text.h"
#include "strata/hkt.h"

namespace strata {
namespace {

Status check_sizes(int branching, int head_size, int value_size, int64_t heads, double scale) {
  if (branching < 2 || branching > kMaxBranching)
    return invalid("branching: expected 2 to ", kMaxBranching, ", got ", branching);
  if (head_size < 1 || head_size > kMaxHeadSize)
    return invalid("head_size: expected 1 to ", kMaxHeadSize, ", got ", head_size);
  if (value_size < 1 || value_size > kMaxHeadSize)
    return invalid("value_size: expected 1 to ", kMaxHeadSize, ", got ", value_size);
  if (heads < 1) return invalid("heads: expected 1 or more, got ", heads);
  if (!std::isfinite(scale)) return invalid("scale: expected a finite number, got ", scale);
  return {};
}

struct NamedPointer {
  const char* name;
  const void* data;
};
Status check_present(std::initializer_list<NamedPointer> pointers) {
  for (const NamedPointer& p : pointers) {
    if (p.data == nullptr) return invalid(p.name, ": expected a pointer to data, got null");
  }
  return {};
}

}  // namespace

Status hsa_stream_check(const HsaStreamProblem& p, const HsaStreamOutputs& outputs, On on) {
  ++argument_checks();
  if (Status s = check_sizes(p.branching, p.head_size, p.value_size, p.heads, p.scale); !s.ok()) return s;
  if (p.batch < 0 || p.tokens < 0 || p.tokens > std::numeric_limits<int32_t>::max()) {
    return invalid("batch, tokens: expected 0 to 2^31 - 1, got ", p.batch, " and ", p.tokens);
  }
  if (p.dtype != DType::kFloat32 && p.dtype != DType::kFloat64 && p.dtype != DType::kBFloat16 &&
      (p.dtype != DType::kFloat16 || on == On::kHost)) {
    return invalid("dtype: expected kFloat32, kFloat64 or kBFloat16, got ", static_cast<int>(p.dtype));
  }
  if (p.threads < 0) return invalid("threads: expected 0 (automatic) or more, got ", p.threads);
  if (p.batch * p.tokens == 0) return {};
  return check_present(
      {{"q", p.q.data}, {"k", p.k.data}, {"v", p.v.data}, {"out", outputs.out.data}, {"lse", outputs.lse}});
}

Status hsa_stream_check(const HsaStreamGradients& g, const HsaStreamProblem& p) {
  if (g.dpositions != nullptr && p.positions == nullptr)
    return invalid("dpositions: expected null, because there are no positions");
  if (g.dkey_bias.data != nullptr && p.key_bias.data == nullptr)
    return invalid("dkey_bias: expected null, because there is no key_bias");
  if (p.batch * p.tokens == 0) return {};
  return check_present({{"dout", g.dout.data}, {"dq", g.dq.data}, {"dk", g.dk.data}, {"dv", g.dv.data}});
}

Status hsa_stream_check(const HsaStreamStep& s) {
  if (Status status = check_sizes(s.branching, s.head_size, s.value_size, s.heads, s.scale); !status.ok())
    return status;
  if (s.dtype != DType::kFloat32 && s.dtype != DType::kFloat64) {
    return invalid("dtype: the decoding step expects kFloat32 or kFloat64, got ", static_cast<int>(s.dtype));
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
