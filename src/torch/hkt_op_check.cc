#include "torch/hkt_op_check.h"

#include "strata/hkt.h"
#include "torch/op_common.h"

namespace strata {
void check_hkt(const HktInputs& in) {
  ++argument_checks();
  const at::Tensor& v = in.v;
  TORCH_CHECK(in.levels() >= 1 && in.levels() <= kMaxLevels, "q: expected a list of 1 to ", kMaxLevels,
              " tensors, one per level, got ", in.levels());
  TORCH_CHECK(in.k.size() == in.q.size(), "k: expected as many levels as q (", in.q.size(), "), got ", in.k.size());
  TORCH_CHECK(v.dim() == 4, "v: expected 4 dimensions (batch, key heads, tokens, channels), got shape ", v.sizes());
  TORCH_CHECK(in.q[0].dim() == 4, "q[0]: expected 4 dimensions (batch, heads, tokens, channels), got shape ",
              in.q[0].sizes());
  const at::ScalarType type = v.scalar_type();
  check_dtype("v", v);
  TORCH_CHECK(in.q[0].size(2) == in.tokens(), "cross-attention is not supported: q[0] has ", in.q[0].size(2),
              " tokens and v has ", in.tokens(), "; HKT pairs the pyramids of one sequence, so both must agree");

  const int64_t B = in.batch(), H = in.heads(), key_heads = v.size(1), d = in.q[0].size(3);
  TORCH_CHECK(key_heads >= 1 && H >= 1 && H % key_heads == 0,
              "q: expected a number of heads that is a multiple of the ", key_heads, " key heads of v, got ", H);
  for (int64_t l = 0; l < in.levels(); ++l) {
    const int64_t rows = hkt_level_tokens(in.tokens(), static_cast<int>(l));
    check_tensor("q[" + std::to_string(l) + "]", in.q[l], {B, H, rows, d}, type, v);
    check_tensor("k[" + std::to_string(l) + "]", in.k[l], {B, key_heads, rows, d}, type, v);
  }
  check_tensor("weights", in.weights, {H, in.levels()}, compute_type(type), v);
  if (in.lengths.has_value()) {
    TORCH_CHECK(at::isIntegralType(in.lengths->scalar_type(), /*includeBool=*/false),
                "lengths: expected integers, got ", in.lengths->scalar_type());
    check_tensor("lengths", *in.lengths, {B}, in.lengths->scalar_type(), v);
  }
  if (in.bias.has_value()) {
    const std::vector<int64_t> full = {B, H, in.tokens(), in.tokens()};
    TORCH_CHECK(at::is_expandable_to(in.bias->sizes(), full), "bias: expected a shape that broadcasts to ", full,
                ", got ", in.bias->sizes());
    check_tensor("bias", *in.bias, in.bias->sizes(), type, v);
  }
}

}  // namespace strata
