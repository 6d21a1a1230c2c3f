#include "model/row_dropout.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "util/random.h"

namespace strata {

using torch::Tensor;

namespace {

// Below this, of 32 bits, an element is dropped.
uint64_t threshold_of(double p) { return static_cast<uint64_t>(std::llround(p * 4294967296.0)); }

// A logical shift to the right: torch's is arithmetic.
Tensor shifted(const Tensor& x, int64_t bits) {
  return torch::bitwise_right_shift(x, bits).bitwise_and((int64_t{1} << (64 - bits)) - 1);
}

Tensor mixed(Tensor x) {  // mix() of util/random.h; int64 wraps around as uint64 does
  auto number = [](uint64_t bits) { return static_cast<int64_t>(bits); };
  x = x + number(0x9e3779b97f4a7c15ULL);
  x = x.bitwise_xor(shifted(x, 30)) * number(0xbf58476d1ce4e5b9ULL);
  x = x.bitwise_xor(shifted(x, 27)) * number(0x94d049bb133111ebULL);
  return x.bitwise_xor(shifted(x, 31));
}

Tensor factors_on_cpu(const Tensor& x, double p, const Tensor& keys, int64_t place) {
  const Tensor factors = torch::empty(x.sizes(), x.options().requires_grad(false));
  const int64_t rows = x.size(0), elements = rows == 0 ? 0 : x.numel() / rows;
  const uint64_t threshold = threshold_of(p);
  const auto* key = keys.data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES_AND(torch::kBFloat16, x.scalar_type(), "row_dropout", [&] {
    auto* out = factors.data_ptr<scalar_t>();
    const auto kept = static_cast<scalar_t>(1 / (1 - p)), dropped = static_cast<scalar_t>(0);
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const uint64_t start = static_cast<uint64_t>(key[b]) + static_cast<uint64_t>(place);
        for (int64_t e = 0; e < elements; ++e)
          out[b * elements + e] = (mix(start + (static_cast<uint64_t>(e) << 8)) >> 32) < threshold ? dropped : kept;
      }
    });
  });
  return factors;
}

}  // namespace

Tensor row_dropout_factors(const Tensor& x, double p, const Tensor& keys, int64_t place) {
  const int64_t elements = x.size(0) == 0 ? 0 : x.numel() / x.size(0);
  const Tensor place_of = torch::arange(elements, keys.options()).mul(256) + place;
  const Tensor drawn = shifted(mixed(keys.unsqueeze(1) + place_of.unsqueeze(0)), 32);
  const Tensor kept = drawn.ge(static_cast<int64_t>(threshold_of(p)));
  return kept.to(x.scalar_type()).mul(1 / (1 - p)).view(x.sizes());
}

Tensor row_dropout(const Tensor& x, double p, const Tensor& keys, int64_t place) {
  TORCH_CHECK(keys.dim() == 1 && keys.size(0) == x.size(0), "keys: expected one per row, ", x.size(0), ", got ",
              keys.sizes());
  torch::Tensor factors;
  {
    torch::NoGradGuard no_grad;
    factors = x.is_cuda() ? row_dropout_factors(x, p, keys, place) : factors_on_cpu(x, p, keys, place);
  }
  return x * factors;
}

}  // namespace strata
