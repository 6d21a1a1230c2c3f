// What the operators about trees share: between encoded tensors and trees, and from Python's names to domains.
#pragma once

#include <algorithm>
#include <vector>

#include "strata/document.h"
#include "strata/tree.h"
#include "torch/hsa_op.h"
#include "torch/op_common.h"

namespace strata {

// A grid needs a width, so only tree_with_domain makes one.
inline Domain domain_of(c10::string_view name) {
  for (Domain domain : {Domain::kSet, Domain::kSequence}) {
    if (name == domain_name(domain)) return domain;
  }
  TORCH_CHECK_VALUE(name != "grid",
                    "domain: expected set or sequence, got \"grid\", which needs a width; use "
                    "tree.with_domain(\"grid\", width)");
  TORCH_CHECK_VALUE(false, "domain: expected set, sequence or grid, got \"", name, "\"");
}

// An operator that graphs hold as it is: one kernel for all devices, and shapes by python/strata/_register.py.
template <class Function>
auto opaque(Function* function) {
  return torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, function);
}

// The tree that build(&tree) makes, encoded.
template <class Build>
at::Tensor built(const Build& build) {
  Tree tree;
  throw_if_failed(build(&tree));
  return encode_tree(tree);
}

// The tree of an encoded tensor, fully checked, because Python code may have changed it.
inline Tree decoded(const at::Tensor& encoded) {
  TORCH_CHECK_VALUE(encoded.scalar_type() == at::kInt && encoded.dim() == 1 && encoded.numel() >= 3 && encoded.is_cpu(),
                    "tree: expected an int32 tensor made by strata.Tree");
  const at::Tensor dense = encoded.contiguous();
  const int32_t* data = dense.data_ptr<int32_t>();
  const int64_t families = data[1], children = dense.numel() - 3 - 2 * families;
  TORCH_CHECK_VALUE(families >= 0 && children >= 0, "tree: its sizes are inconsistent; create it with strata.Tree");
  const int32_t *begin = data + 2, *child = begin + families + 1, *kind = child + children;
  std::vector<Domain> domains;
  std::vector<int32_t> widths;
  for (int64_t f = 0; f < families; ++f) {
    domains.push_back(kind[f] > 0 ? Domain::kGrid : kind[f] == 0 ? Domain::kSequence : Domain::kSet);
    widths.push_back(std::max(0, kind[f]));
  }
  Tree tree;
  throw_if_failed(
      Tree::make(data[0], {begin, begin + families + 1}, {child, child + children}, domains, widths, &tree));
  return tree;
}

// The rows of an int64 tensor (n, 2) as spans.
inline std::vector<Span> spans_of(const char* name, const at::Tensor& pairs) {
  TORCH_CHECK_VALUE(pairs.scalar_type() == at::kLong && pairs.dim() == 2 && pairs.size(1) == 2 && pairs.is_cpu(), name,
                    ": expected an int64 tensor of shape (n, 2) on the CPU, got ", pairs.scalar_type(), " of shape ",
                    pairs.sizes());
  const at::Tensor dense = pairs.contiguous();
  const int64_t* data = dense.data_ptr<int64_t>();
  std::vector<Span> spans(dense.size(0));
  for (size_t n = 0; n < spans.size(); ++n) spans[n] = {data[2 * n], data[2 * n + 1]};
  return spans;
}

// (tokens, 5): begin, end, image, row, column of each leaf; bytes of the source, and the place of an image patch.
inline at::Tensor document_leaves(const Document& document) {
  std::vector<int64_t> rows;
  for (const Document::Leaf& leaf : document.leaves)
    rows.insert(rows.end(), {leaf.begin, leaf.end, leaf.image, leaf.row, leaf.column});
  return torch::tensor(rows, at::kLong).view({-1, 5});
}

}  // namespace strata
