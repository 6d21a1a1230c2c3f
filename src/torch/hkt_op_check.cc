#include "torch/hkt_op_check.h"

#include "strata/hkt.h"
#include "torch/packed.h"

namespace strata {
namespace {

void check_packed(const HktInputs& in) {
  check_cu_seqlens("cu_seqlens", *in.cu_seqlens, in.sequences(), in.rows(), in.v);
  check_cu_seqlens("key_cu_seqlens", *in.keys_cu_seqlens(), in.sequences(), in.key_rows(), in.v);
  TORCH_CHECK(!in.lengths.has_value() && !in.key_lengths.has_value(),
              "lengths: expected none with cu_seqlens, which has the lengths");
  TORCH_CHECK(!in.bias.has_value(), "bias: expected none with cu_seqlens; pad the sequences, or call once for each");
}

void check_levels(const HktInputs& in) {
  const at::Tensor& v = in.v;
  const int64_t B = v.size(0), H = in.heads(), key_heads = v.size(1), d = in.q[0].size(3);
  TORCH_CHECK(key_heads >= 1 && H >= 1 && H % key_heads == 0,
              "q: expected a number of heads that is a multiple of the ", key_heads, " key heads of v, got ", H);
  for (int l = 0; l < in.levels(); ++l) {
    auto rows = [&](int64_t all) {
      return in.packed() ? packed_rows(all, in.sequences(), l) : hkt_level_tokens(all, l);
    };
    check_tensor("q[" + std::to_string(l) + "]", in.q[l], {B, H, rows(in.rows()), d}, v.scalar_type(), v);
    check_tensor("k[" + std::to_string(l) + "]", in.k[l], {B, key_heads, rows(in.key_rows()), d}, v.scalar_type(), v);
  }
  check_tensor("weights", in.weights, {H, in.levels()}, compute_type(v.scalar_type()), v);
}

}  // namespace

void check_hkt(const HktInputs& in) {
  ++argument_checks();
  const at::Tensor& v = in.v;
  TORCH_CHECK(in.levels() >= 1 && in.levels() <= kMaxLevels, "q: expected a list of 1 to ", kMaxLevels,
              " tensors, one per level, got ", in.levels());
  TORCH_CHECK(in.k.size() == in.q.size(), "k: expected as many levels as q (", in.q.size(), "), got ", in.k.size());
  TORCH_CHECK(v.dim() == 4, "v: expected 4 dimensions (batch, key heads, tokens, channels), got shape ", v.sizes());
  TORCH_CHECK(in.q[0].dim() == 4, "q[0]: expected 4 dimensions (batch, heads, tokens, channels), got shape ",
              in.q[0].sizes());
  check_dtype("v", v);
  TORCH_CHECK(in.packed() || !in.key_cu_seqlens.has_value(), "cu_seqlens: expected it with key_cu_seqlens");
  if (in.packed()) check_packed(in);
  check_levels(in);
  check_integers("lengths", in.lengths, {v.size(0)}, v);
  check_integers("key_lengths", in.key_lengths, {v.size(0)}, v);
  if (in.slopes.has_value()) check_tensor("slopes", *in.slopes, {in.heads()}, compute_type(v.scalar_type()), v);
  if (in.bias.has_value()) {
    const std::vector<int64_t> full = {v.size(0), in.heads(), in.rows(), in.key_rows()};
    TORCH_CHECK(at::is_expandable_to(in.bias->sizes(), full), "bias: expected a shape that broadcasts to ", full,
                ", got ", in.bias->sizes());
    check_tensor("bias", *in.bias, in.bias->sizes(), v.scalar_type(), v);
  }
  check_dropout(in.dropout, in.dropout_state, v);
}

}  // namespace strata
