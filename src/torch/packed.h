// Packed sequences and dropout, as the operators take them.
#pragma once

#include "strata/dropout.h"
#include "torch/hkt_op.h"
#include "torch/op_common.h"

namespace strata {

inline void check_integers(const char* name, const optional<at::Tensor>& tensor, at::IntArrayRef sizes,
                           const at::Tensor& like) {
  if (!tensor.has_value()) return;
  TORCH_CHECK(at::isIntegralType(tensor->scalar_type(), /*includeBool=*/false), name, ": expected integers, got ",
              tensor->scalar_type());
  check_tensor(name, *tensor, sizes, tensor->scalar_type(), like);
}

// cu: the first row of each sequence and the end of the last. Only numbers that lie on the CPU are looked at: others
// would have to be waited for.
inline void check_cu_seqlens(const char* name, const at::Tensor& cu, int64_t sequences, int64_t rows,
                             const at::Tensor& like) {
  TORCH_CHECK(
      cu.dim() == 1 && cu.size(0) >= 1, name,
      ": expected the first row of each sequence and the end of the last, a vector of at least one number, got ",
      "shape ", cu.sizes());
  check_integers(name, cu, {sequences + 1}, like);
  TORCH_CHECK(like.size(0) == 1, "q: expected a batch of 1 with ", name, ", which packs the sequences, got ",
              like.size(0));
  if (!cu.is_cpu()) return;
  const at::Tensor ends = cu.to(at::kLong).contiguous();
  const int64_t* at = ends.data_ptr<int64_t>();
  TORCH_CHECK_VALUE(at[0] == 0, name, ": expected 0 as the first number, got ", at[0]);
  for (int64_t b = 0; b < sequences; ++b) {
    TORCH_CHECK_VALUE(at[b] <= at[b + 1], name, ": expected numbers that do not fall, got ", at[b], " and then ",
                      at[b + 1]);
  }
  TORCH_CHECK_VALUE(at[sequences] == rows, name, ": expected the last number to be the ", rows,
                    " rows of all sequences, got ", at[sequences]);
}

// The sequences of one side, as the kernels take them. It must outlive the problem. Nothing where `cu` is not given.
struct PackedSequences {
  at::Tensor lengths, begins;
  int64_t longest = 0;

  PackedSequences() = default;
  PackedSequences(const optional<at::Tensor>& cu, int64_t levels, int64_t max_seqlen) {
    if (!cu.has_value()) return;
    const at::Tensor ends = cu->to(at::kLong);
    lengths = ends.slice(0, 1) - ends.slice(0, 0, -1);
    begins = packed_begins(ends, levels);
    longest = max_seqlen > 0 ? max_seqlen : lengths.numel() == 0 ? 0 : lengths.max().item<int64_t>();
  }
  bool given() const { return begins.defined(); }
  template <class AnyView>
  AnyView packed(AnyView view, int level = 0) const {
    if (given()) view.begins = begins.data_ptr<int64_t>() + level * begins.size(1);
    return view;
  }
};

inline void check_dropout(double dropout, const optional<at::Tensor>& state, const at::Tensor& like) {
  TORCH_CHECK(dropout == 0 || state.has_value(),
              "dropout_state: expected two numbers, seed and offset, with dropout; "
              "torch.randint(2**62, (2,), device=..) draws them");
  if (state.has_value()) check_tensor("dropout_state", *state, {2}, at::kLong, like);
}
// Seed and offset from torch's generator, unless they are given.
inline optional<at::Tensor> dropout_state_or_drawn(double dropout, const optional<at::Tensor>& state,
                                                   const at::Tensor& like) {
  if (dropout == 0 || state.has_value()) return state;
  return at::randint(int64_t{1} << 62, {2}, at::TensorOptions(at::kLong).device(like.device()));
}

}  // namespace strata
