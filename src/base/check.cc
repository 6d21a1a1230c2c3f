#include "base/check.h"

#include <cmath>

#include "base/text.h"
#include "strata/hkt.h"

namespace strata {

Status check_present(std::initializer_list<NamedPointer> pointers) {
  for (const NamedPointer& p : pointers) {
    if (p.data == nullptr) return invalid(p.name, ": expected a pointer to data, got null; set it before the call");
  }
  return {};
}

Status check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid(name, ": expected ", low, " to ", high, ", got ", value);
}

Status check_heads(int head_size, int value_size, double scale) {
  if (Status s = check_range("head_size", head_size, 1, kMaxHeadSize); !s.ok()) return s;
  if (Status s = check_range("value_size", value_size, 1, kMaxHeadSize); !s.ok()) return s;
  if (!std::isfinite(scale)) return invalid("scale: expected a finite number, got ", scale);
  return {};
}

Status check_dtype(DType dtype, On on) {
  if (dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kBFloat16) return {};
  if (dtype == DType::kFloat16 && on == On::kDevice) return {};
  return invalid("dtype: expected kFloat32, kFloat64 or kBFloat16 (on CUDA also kFloat16), got ",
                 static_cast<int>(dtype));
}

Status check_threads(int threads) {
  if (threads >= 0) return {};
  return invalid("threads: expected 0 (automatic) or more, got ", threads);
}

Status check_reference_dtype(DType dtype) {
  if (dtype == DType::kFloat64) return {};
  return invalid("dtype: the reference expects kFloat64; convert the inputs, or call the fused kernels");
}

Status check_dropout(const Dropout& dropout) {
  if (dropout.probability == 0) return {};
  if (!(dropout.probability > 0 && dropout.probability <= 0.9999))
    return invalid("dropout: expected a probability from 0 to 0.9999, got ", dropout.probability);
  return check_present({{"dropout state", dropout.state}});
}

}  // namespace strata
