// Many trees at once, built in parallel. An error names the place in the batch.
#include <ATen/Parallel.h>

#include <numeric>

#include "strata/document.h"
#include "torch/compat.h"
#include "torch/tree_op.h"

namespace strata {
namespace {

using at::Tensor;

// make(n, &made) for n in 0 .. count - 1; the first that fails is thrown as "name[n]: ..". `size`: tokens or bytes in
// all; small batches are not worth a second thread.
template <class Made, class Make>
std::vector<Made> made_in_parallel(const char* name, int64_t count, int64_t size, const Make& make) {
  constexpr int64_t kSmall = 16384;
  std::vector<Made> made(count);
  std::vector<Status> status(count);
  at::parallel_for(0, count, size < kSmall ? count : 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) status[n] = make(n, &made[n]);
  });
  for (int64_t n = 0; n < count; ++n) {
    if (status[n].ok()) continue;
    throw_if_failed({status[n].code(), std::string(name) + "[" + std::to_string(n) + "]: " + status[n].message()});
  }
  return made;
}

std::vector<Tensor> encoded_trees(const std::vector<Tree>& trees) {
  std::vector<Tensor> encoded;
  for (const Tree& tree : trees) encoded.push_back(encode_tree(tree));
  return encoded;
}

int64_t total(at::IntArrayRef lengths) { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }

std::vector<Tensor> tree_batch_windows(at::IntArrayRef lengths, at::IntArrayRef windows, int64_t shift,
                                       c10::string_view domain) {
  const Domain of = domain_of(domain);
  const std::vector<int64_t> sizes = windows.vec();
  return encoded_trees(
      made_in_parallel<Tree>("lengths", static_cast<int64_t>(lengths.size()), total(lengths),
                             [&](int64_t n, Tree* tree) { return window_tree(lengths[n], sizes, shift, of, tree); }));
}

// Windows over the tokens between the ends, which stand beside the tree; over all tokens where there are none between.
Status window_tree_with_ends(int64_t tokens, const std::vector<int64_t>& windows, int64_t shift, Domain domain,
                             int64_t before, int64_t behind, Tree* tree) {
  if (before < 0 || behind < 0) return tree_with_ends(Tree(), before, behind, tree);  // says what is wrong
  if (before + behind == 0 || before + behind >= tokens) return window_tree(tokens, windows, shift, domain, tree);
  Tree inner;
  if (Status s = window_tree(tokens - before - behind, windows, shift, domain, &inner); !s.ok()) return s;
  return tree_with_ends(inner, before, behind, tree);
}

// The trees of a batch in one tensor: a compiled graph can make them for any batch and lengths.
Tensor trees_windows(const Tensor& lengths, at::IntArrayRef windows, int64_t shift, c10::string_view domain,
                     int64_t before, int64_t behind) {
  TORCH_CHECK_VALUE(lengths.dim() == 1 && at::isIntegralType(lengths.scalar_type(), /*includeBool=*/false),
                    "lengths: expected integers of shape (batch), got ", lengths.scalar_type(), " of shape ",
                    lengths.sizes());
  const Tensor counts = lengths.to(at::kCPU, at::kLong).contiguous();
  const at::IntArrayRef tokens(counts.data_ptr<int64_t>(), static_cast<size_t>(counts.numel()));
  const Domain of = domain_of(domain);
  const std::vector<int64_t> sizes = windows.vec();
  const std::vector<Tensor> trees =
      encoded_trees(made_in_parallel<Tree>("lengths", counts.numel(), total(tokens), [&](int64_t n, Tree* tree) {
        return window_tree_with_ends(tokens[n], sizes, shift, of, before, behind, tree);
      }));
  return trees.empty() ? at::empty({0}, at::kInt) : at::cat(trees);
}

std::vector<Tensor> tree_batch_spans(at::IntArrayRef lengths, at::TensorList spans, c10::string_view domain) {
  TORCH_CHECK_VALUE(lengths.size() == spans.size(), "spans: expected one list per length (", lengths.size(), "), got ",
                    spans.size());
  const Domain of = domain_of(domain);
  std::vector<std::vector<Span>> read;
  for (const Tensor& pairs : spans) read.push_back(spans_of("spans", pairs));
  return encoded_trees(
      made_in_parallel<Tree>("spans", static_cast<int64_t>(lengths.size()), total(lengths),
                             [&](int64_t n, Tree* tree) { return tree_from_spans(lengths[n], read[n], of, tree); }));
}

std::tuple<std::vector<Tensor>, std::vector<Tensor>> tree_batch_text(const c10::List<std::string>& texts,
                                                                     bool characters) {
  const std::vector<std::string> source = texts.vec();
  const TextLeaf leaf = characters ? TextLeaf::kCharacter : TextLeaf::kWord;
  int64_t bytes = 0;
  for (const std::string& text : source) bytes += static_cast<int64_t>(text.size());
  const auto documents = made_in_parallel<Document>(
      "texts", static_cast<int64_t>(source.size()), bytes,
      [&](int64_t n, Document* document) { return document_from_text(source[n], leaf, document); });
  std::vector<Tensor> trees, leaves;
  for (const Document& document : documents) {
    trees.push_back(encode_tree(document.tree));
    leaves.push_back(document_leaves(document));
  }
  return {trees, leaves};
}

TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def("trees_windows(Tensor lengths, int[] windows, int shift, str domain, int before=0, int behind=0) -> Tensor",
        opaque(trees_windows));
  m.def("tree_batch_windows(int[] lengths, int[] windows, int shift, str domain) -> Tensor[]",
        opaque(tree_batch_windows));
  m.def("tree_batch_spans(int[] lengths, Tensor[] spans, str domain) -> Tensor[]", opaque(tree_batch_spans));
  m.def("tree_batch_text(str[] texts, bool characters) -> (Tensor[], Tensor[])", opaque(tree_batch_text));
}

}  // namespace
}  // namespace strata
