#include "model/rotary.h"

#include <cmath>

namespace strata {

using torch::Tensor;

Tensor rotate(const Tensor& x, const Tensor& positions, int64_t size, double base, bool interleaved) {
  TORCH_CHECK(x.dim() == 4, "x: expected shape (batch, heads, rows, channels), got ", x.sizes());
  TORCH_CHECK(size >= 0 && size % 2 == 0 && size <= x.size(3), "rotary: expected an even number of channels, at most ",
              x.size(3), ", got ", size);
  TORCH_CHECK(std::isfinite(base) && base > 1, "rotary_base: expected a number above 1, got ", base);
  if (size == 0) return x;
  return rotate(x, positions,
                torch::exp(torch::arange(size / 2, x.options().dtype(torch::kDouble)) * (-2 * std::log(base) / size)),
                interleaved);
}

Tensor rotate(const Tensor& x, const Tensor& positions, const Tensor& frequencies, bool interleaved) {
  const int64_t size = 2 * frequencies.numel();
  TORCH_CHECK(x.dim() == 4 && frequencies.dim() == 1 && size <= x.size(3),
              "frequencies: expected at most half as many as x has channels, got ", frequencies.sizes(), " for x of ",
              x.sizes());
  const auto compute = x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  // The angles in double: positions may be large. (n, size / 2) or (B, n, size / 2)
  Tensor angles = positions.to(x.device(), torch::kDouble).unsqueeze(-1) * frequencies.to(x.device(), torch::kDouble);
  if (angles.dim() == 3) angles = angles.unsqueeze(1);
  const Tensor cos = angles.cos().to(compute), sin = angles.sin().to(compute);
  const Tensor first = (interleaved ? x.slice(3, 0, size, 2) : x.narrow(3, 0, size / 2)).to(compute);
  const Tensor second = (interleaved ? x.slice(3, 1, size, 2) : x.narrow(3, size / 2, size / 2)).to(compute);
  std::vector<Tensor> parts = {(first * cos - second * sin).to(x.scalar_type()),
                               (second * cos + first * sin).to(x.scalar_type())};
  if (interleaved) parts = {torch::stack(parts, -1).flatten(-2)};
  if (size < x.size(3)) parts.push_back(x.narrow(3, size, x.size(3) - size));
  return torch::cat(parts, 3);
}

Tensor places_in_sequences(int64_t rows, const Tensor& begins) {
  const Tensor row = torch::arange(rows, begins.options());
  if (begins.numel() == 0) return row;
  return row - begins.index_select(0, torch::searchsorted(begins, row, /*out_int32=*/false, /*right=*/true) - 1);
}

}  // namespace strata
