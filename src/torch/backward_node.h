// How the operators take part in autograd: each call adds a plain node to the graph, as torch's own operators do. The
// transforms of torch.func work with nodes; they refuse torch::autograd::Function of C++.
#pragma once

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "torch/compat.h"

namespace strata {

using torch::autograd::variable_list;

// PyTorch counts the references of nodes by std::shared_ptr, and newer versions by c10::intrusive_ptr.
using NodePointer = decltype(torch::autograd::Edge::function);
template <class Pointer>
constexpr bool kIsShared = std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>;

template <class Made, class Pointer = NodePointer, class... Arguments>
Pointer make_node(Arguments&&... arguments) {
  if constexpr (kIsShared<Pointer>) {
    return Pointer(new Made(std::forward<Arguments>(arguments)...), [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Made>(std::forward<Arguments>(arguments)...);
  }
}
template <class Made, class Pointer = NodePointer>
Pointer pointer_to(Made* node) {
  if constexpr (kIsShared<Pointer>) {
    return node->shared_from_this();
  } else {
    return Pointer::unsafe_reclaim_from_nonowning(node);
  }
}

// Gradients of an operator's inputs, one per input, undefined where there is none. `saved`: the inputs and then, if
// they were saved too, the outputs. `gradients`: of the outputs, undefined where nothing depends on one.
using Backward = std::function<variable_list(const variable_list& saved, const variable_list& gradients)>;

class BackwardNode : public torch::autograd::Node {
 public:
  BackwardNode(std::string name, Backward backward) : name_(std::move(name)), backward_(std::move(backward)) {}

  void save(const at::Tensor& tensor, bool is_output) { saved_.emplace_back(tensor, is_output); }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    variable_list saved;
    saved.reserve(saved_.size());
    for (const torch::autograd::SavedVariable& variable : saved_) saved.push_back(variable.unpack(pointer_to(this)));
    return backward_(saved, gradients);
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (torch::autograd::SavedVariable& variable : saved_) variable.reset_data();
  }

  std::string name() const override { return name_; }

 private:
  std::string name_;
  Backward backward_;
  std::vector<torch::autograd::SavedVariable> saved_;
};

inline bool needs_gradient(const variable_list& inputs) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) return true;
  }
  return false;
}

// Forward-mode derivatives (torch.func.jvp, dual numbers) would silently be lost.
inline void refuse_forward_mode(const char* name, const variable_list& inputs) {
  for (const at::Tensor& input : inputs) {
    TORCH_CHECK_NOT_IMPLEMENTED(!input.defined() || !input._fw_grad(/*level=*/0).defined(), name,
                                " has no forward-mode derivative (jvp, jacfwd); use vjp, jacrev or backward()");
  }
}

// Adds a node behind `outputs` that computes the gradients of `inputs` by `backward`. Does nothing where no input needs
// a gradient. Undefined inputs stand for arguments that were not given.
inline void attach_backward(const char* name, const variable_list& inputs, variable_list outputs, bool save_outputs,
                            Backward backward) {
  refuse_forward_mode(name, inputs);
  if (!needs_gradient(inputs)) return;
  const NodePointer pointer = make_node<BackwardNode>(std::string(name) + " backward", std::move(backward));
  auto* node = static_cast<BackwardNode*>(pointer.get());
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (at::Tensor& output : outputs) torch::autograd::set_history(output, pointer);
  for (const at::Tensor& input : inputs) node->save(input, /*is_output=*/false);
  if (!save_outputs) return;
  for (const at::Tensor& output : outputs) node->save(output, /*is_output=*/true);
}

// For the outputs of a gradient operator, which has no gradient of its own.
inline void refuse_second_derivative(const char* name, const variable_list& inputs, variable_list outputs) {
  attach_backward(name, inputs, std::move(outputs), /*save_outputs=*/false,
                  [name](const variable_list&, const variable_list&) -> variable_list {
                    TORCH_CHECK_NOT_IMPLEMENTED(
                        false, name,
                        " cannot be differentiated twice; use first-order gradients, or compose it from torch "
                        "operators where you need the second");
                  });
}

// For operators without a gradient: a result that looks differentiable and is not would lose gradients silently.
inline void refuse_gradient(const char* name, const variable_list& inputs) {
  refuse_forward_mode(name, inputs);
  TORCH_CHECK_NOT_IMPLEMENTED(!needs_gradient(inputs), name,
                              " has no gradient; call it under torch.no_grad(), or detach its inputs");
}

inline at::Tensor or_undefined(const optional<at::Tensor>& t) { return t.has_value() ? *t : at::Tensor(); }

inline optional<at::Tensor> optional_tensor(const at::Tensor& t) {
  return t.defined() ? optional<at::Tensor>(t) : c10::nullopt;
}

// The gradient of an output as its backward operator takes it: zeros where nothing depends on the output.
inline at::Tensor or_zeros(const at::Tensor& gradient, const at::Tensor& output) {
  return gradient.defined() ? gradient : at::zeros_like(output);
}

}  // namespace strata
