// Trees for Python: builders that return the encoded tensor, and properties of a tree.
#include <cmath>

#include "strata/document.h"
#include "strata/tree.h"
#include "torch/compat.h"
#include "torch/hsa_op.h"
#include "torch/op_common.h"

namespace strata {
namespace {

using at::Tensor;

Domain domain_of(c10::string_view name) {
  for (Domain domain : {Domain::kSet, Domain::kSequence, Domain::kGraph}) {
    if (name == domain_name(domain)) return domain;
  }
  TORCH_CHECK_VALUE(false, "domain: expected set, sequence or graph, got \"", name, "\"");
}

template <class Build>
Tensor built(const Build& build) {
  Tree tree;
  throw_if_failed(build(&tree));
  return encode_tree(tree);
}

// The tree of an encoded tensor, fully checked, because Python code may have changed it.
Tree decoded(const Tensor& encoded) {
  TORCH_CHECK_VALUE(encoded.scalar_type() == at::kInt && encoded.dim() == 1 && encoded.numel() >= 3 && encoded.is_cpu(),
                    "tree: expected an int32 tensor made by strata.Tree");
  const Tensor dense = encoded.contiguous();
  const int32_t* data = dense.data_ptr<int32_t>();
  const int64_t families = data[1], children = dense.numel() - 3 - 2 * families;
  TORCH_CHECK_VALUE(families >= 0 && children >= 0, "tree: its sizes are inconsistent; create it with strata.Tree");
  const int32_t *begin = data + 2, *child = begin + families + 1, *kind = child + children;
  std::vector<Domain> domains;
  std::vector<int32_t> widths;
  for (int64_t f = 0; f < families; ++f) {
    domains.push_back(kind[f] < 0 ? Domain::kSet : (kind[f] == 0 ? Domain::kSequence : Domain::kGrid));
    widths.push_back(std::max(0, kind[f]));
  }
  Tree tree;
  throw_if_failed(
      Tree::make(data[0], {begin, begin + families + 1}, {child, child + children}, domains, widths, &tree));
  return tree;
}

Tensor tree_windows(int64_t tokens, at::IntArrayRef windows, int64_t shift, c10::string_view domain) {
  return built([&](Tree* tree) { return window_tree(tokens, windows.vec(), shift, domain_of(domain), tree); });
}
Tensor tree_star(int64_t tokens, c10::string_view domain) {
  return built([&](Tree* tree) { return star_tree(tokens, domain_of(domain), tree); });
}
Tensor tree_with_ends_of(const Tensor& encoded, int64_t before, int64_t behind) {
  return built([&](Tree* tree) { return tree_with_ends(decoded(encoded), before, behind, tree); });
}
Tensor tree_quadtree(int64_t height, int64_t width) {
  return built([&](Tree* tree) { return quadtree(height, width, tree); });
}
Tensor tree_quadtree_order(int64_t height, int64_t width) {
  return torch::tensor(quadtree_order(height, width), at::kLong);
}
Tensor tree_parents(at::IntArrayRef parents, c10::string_view domain) {
  return built([&](Tree* tree) { return tree_from_parents(parents.vec(), domain_of(domain), tree); });
}
Tensor tree_brackets(c10::string_view text) {
  return built([&](Tree* tree) { return tree_from_brackets(std::string(text), tree); });
}
// The tree and, per token, (begin, end, image, row, column): bytes of the source, and the place of an image patch.
template <class Read>
std::tuple<Tensor, Tensor> document(const Read& read) {
  Document made;
  throw_if_failed(read(&made));
  std::vector<int64_t> leaves;
  for (const Document::Leaf& leaf : made.leaves)
    leaves.insert(leaves.end(), {leaf.begin, leaf.end, leaf.image, leaf.row, leaf.column});
  return {encode_tree(made.tree), torch::tensor(leaves, at::kLong).view({-1, 5})};
}
std::tuple<Tensor, Tensor> tree_from_text(c10::string_view text, bool characters) {
  const TextLeaf leaf = characters ? TextLeaf::kCharacter : TextLeaf::kWord;
  return document([&](Document* made) { return document_from_text(std::string(text), leaf, made); });
}
std::tuple<Tensor, Tensor> tree_from_markdown(c10::string_view text, int64_t rows, int64_t columns) {
  return document([&](Document* made) {
    return document_from_markdown(std::string(text), static_cast<int>(rows), static_cast<int>(columns), made);
  });
}
std::tuple<Tensor, Tensor> tree_from_json(c10::string_view text, int64_t rows, int64_t columns) {
  return document([&](Document* made) {
    return document_from_json(std::string(text), static_cast<int>(rows), static_cast<int>(columns), made);
  });
}
std::string tree_text(const Tensor& encoded) { return decoded(encoded).to_string(); }
int64_t tree_cost(const Tensor& encoded) { return decoded(encoded).cost(); }

TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def("tree_windows(int tokens, int[] windows, int shift, str domain) -> Tensor", tree_windows);
  m.def("tree_star(int tokens, str domain) -> Tensor", tree_star);
  m.def("tree_with_ends(Tensor encoded, int before, int behind) -> Tensor", tree_with_ends_of);
  m.def("tree_quadtree(int height, int width) -> Tensor", tree_quadtree);
  m.def("tree_quadtree_order(int height, int width) -> Tensor", tree_quadtree_order);
  m.def("tree_parents(int[] parents, str domain) -> Tensor", tree_parents);
  m.def("tree_brackets(str text) -> Tensor", tree_brackets);
  m.def("tree_from_text(str text, bool characters) -> (Tensor, Tensor)", tree_from_text);
  m.def("tree_from_markdown(str text, int patch_rows, int patch_columns) -> (Tensor, Tensor)", tree_from_markdown);
  m.def("tree_from_json(str text, int patch_rows, int patch_columns) -> (Tensor, Tensor)", tree_from_json);
  m.def("tree_text(Tensor encoded) -> str", tree_text);
  m.def("tree_cost(Tensor encoded) -> int", tree_cost);
  m.def("sinusoidal_positions(int tables, int places) -> Tensor", sinusoidal_positions);
}

// cos(angle * distance) over a range of wavelengths, averaged: the inner product of sinusoidal vectors.
double closeness(double distance) {
  constexpr int kWaves = 8;
  double sum = 0;
  for (int wave = 0; wave < kWaves; ++wave)
    sum += std::cos(distance * std::pow(10000.0, -static_cast<double>(wave) / kWaves));
  return sum / kWaves;
}

}  // namespace

Tensor sinusoidal_positions(int64_t tables, int64_t places) {
  Tensor table = at::empty({tables, places, places});
  auto at = table.accessor<float, 3>();
  for (int64_t kind = 0; kind < tables; ++kind) {
    const int64_t width = kind == 0 ? places : kind;  // a sequence is one row
    for (int64_t c = 0; c < places; ++c) {
      for (int64_t b = 0; b < places; ++b) {
        const double rows = static_cast<double>(c / width - b / width),
                     columns = static_cast<double>(c % width - b % width);
        at[kind][c][b] = static_cast<float>(c == b ? 0.0 : (closeness(rows) + closeness(columns)) / 2);
      }
    }
  }
  return table;
}
}  // namespace strata
