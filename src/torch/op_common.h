// What the operators of both mechanisms share: views of tensors, checks, errors, the dispatcher.
#pragma once

#include "base/check_count.h"
#include "strata/status.h"
#include "strata/tensor.h"
#include "torch/compat.h"
#include "torch/output_memory.h"

namespace strata {

inline void throw_if_failed(const Status& status) {
  TORCH_CHECK_WITH(OutOfMemoryError, status.code() != StatusCode::kOutOfMemory, "strata: ", status.message());
  TORCH_CHECK_VALUE(status.ok(), "strata: ", status.message());
}

inline ConstView const_view(const at::Tensor& t) {
  return {t.data_ptr(), {t.stride(0), t.stride(1), t.stride(2), t.stride(3)}};
}
inline View view(const at::Tensor& t) { return {t.data_ptr(), {t.stride(0), t.stride(1), t.stride(2), t.stride(3)}}; }

inline at::ScalarType compute_type(at::ScalarType storage) { return storage == at::kDouble ? at::kDouble : at::kFloat; }

inline DType dtype_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kDouble:
      return DType::kFloat64;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    default:
      return DType::kFloat32;
  }
}

// float32, float64, bfloat16, and float16 except on the CPU.
inline void check_dtype(const char* name, const at::Tensor& t) {
  const at::ScalarType type = t.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || (type == at::kHalf && !t.is_cpu()),
              name, ": expected float32, float64 or bfloat16 (on CUDA also float16), got ", type,
              "; convert q, k and v with .to(torch.float32)");
}

// A tensor must have this shape, type and the device of `like`.
inline void check_tensor(const std::string& name, const at::Tensor& tensor, at::IntArrayRef sizes, at::ScalarType type,
                         const at::Tensor& like) {
  TORCH_CHECK(tensor.sizes() == sizes, name, ": expected shape ", sizes, ", got ", tensor.sizes());
  TORCH_CHECK(tensor.scalar_type() == type, name, ": expected ", type, " like the other tensors, got ",
              tensor.scalar_type(), "; convert it with .to(", type, ")");
  TORCH_CHECK(tensor.device() == like.device(), name, ": expected it on ", like.device(), " like the others, got ",
              tensor.device(), "; move all tensors to one device");
}

// An uninitialised tensor whose sizes may be open (see has_open_sizes).
inline at::Tensor empty_open(c10::SymIntArrayRef sizes, const at::TensorOptions& options) {
  const at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
  const auto known = c10::asIntArrayRefSlowOpt(sizes);
  const bool large = options.device().is_cpu() && known.has_value() &&
                     static_cast<size_t>(c10::multiply_integers(*known)) * c10::elementSize(type) >= kLargeOutput;
  return large ? empty_large_output(*known, type) : at::empty_symint(sizes, options);
}

// An uninitialised (B, H, T, C) tensor. Its memory is token-major (B, T, H, C) if that of `like` is, so that the usual
// reshape to (B, T, H * C) needs no copy.
inline at::Tensor empty_with_layout(const at::Tensor& like, c10::SymIntArrayRef sizes) {
  const bool token_major = like.sym_size(1) > 1 && like.sym_stride(1) < like.sym_stride(2);
  if (!token_major) return empty_open(sizes, like.options());
  const std::vector<c10::SymInt> token_first = {sizes[0], sizes[2], sizes[1], sizes[3]};
  return empty_open(token_first, like.options()).transpose(1, 2);
}

template <class Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Whether a call below autograd reaches the kernels of the tensor's device with nothing in between: no tracing, no fake
// or batched tensors, no autocast.
inline bool reaches_device(const at::Tensor& t) {
  const auto tls = c10::impl::tls_local_dispatch_key_set();
  const c10::DispatchKeySet keys =
      ((t.key_set() | tls.included_) - tls.excluded_).remove(c10::DispatchKey::BackendSelect);
  const c10::DispatchKey key = keys.highestPriorityTypeId();
  return key == c10::DispatchKey::CPU || key == c10::DispatchKey::CUDA;
}

// An operator's kernel, called from its autograd kernel: directly where that is what the dispatcher would do.
template <class... Parameters, class Result, class... Arguments>
Result call_below_autograd(const char* name, Result (*kernel)(Parameters...), const at::Tensor& like,
                           Arguments&&... arguments) {
  at::AutoDispatchBelowADInplaceOrView below;
  if (reaches_device(like)) return kernel(std::forward<Arguments>(arguments)...);
  return find_op<Result(Parameters...)>(name).call(std::forward<Arguments>(arguments)...);
}

}  // namespace strata
