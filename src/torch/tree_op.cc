// Trees for Python: builders that return the encoded tensor, and properties of a tree.
#include "torch/tree_op.h"

#include <cmath>

#include "strata/document.h"
#include "torch/compat.h"

namespace strata {
namespace {

using at::Tensor;

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
Tensor tree_of_spans(int64_t tokens, const Tensor& spans, c10::string_view domain) {
  return built([&](Tree* tree) { return tree_from_spans(tokens, spans_of("spans", spans), domain_of(domain), tree); });
}
Tensor tree_of_offsets(at::TensorList levels, c10::string_view domain) {
  std::vector<std::vector<int64_t>> boundaries;
  for (const Tensor& level : levels) {
    TORCH_CHECK_VALUE(level.scalar_type() == at::kLong && level.dim() == 1 && level.is_cpu(), "offsets[",
                      boundaries.size(), "]: expected an int64 tensor of one dimension on the CPU, got ",
                      level.scalar_type(), " of shape ", level.sizes());
    const Tensor dense = level.contiguous();
    boundaries.emplace_back(dense.data_ptr<int64_t>(), dense.data_ptr<int64_t>() + dense.numel());
  }
  return built([&](Tree* tree) { return tree_from_offsets(boundaries, domain_of(domain), tree); });
}
Tensor tree_of_character_spans(const Tensor& offsets, const Tensor& spans, c10::string_view domain) {
  return built([&](Tree* tree) {
    return tree_from_character_spans(spans_of("offsets", offsets), spans_of("spans", spans), domain_of(domain), tree);
  });
}
Tensor tree_in_domain(const Tensor& encoded, c10::string_view domain, int64_t width) {
  const Domain other = domain == domain_name(Domain::kGrid) ? Domain::kGrid : domain_of(domain);
  return built([&](Tree* tree) { return tree_with_domain(decoded(encoded), other, width, tree); });
}
Tensor tree_spans(const Tensor& encoded) {
  const std::vector<Span> spans = decoded(encoded).spans();
  const Tensor pairs = at::empty({static_cast<int64_t>(spans.size()), 2}, at::kLong);
  int64_t* to = pairs.data_ptr<int64_t>();
  for (const Span& span : spans) *to++ = span.begin, *to++ = span.end;
  return pairs;
}

template <class Read>
std::tuple<Tensor, Tensor> document(const Read& read) {
  Document made;
  throw_if_failed(read(&made));
  return {encode_tree(made.tree), document_leaves(made)};
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
// As UTF-8, and as a number in a tensor: graphs hold operators that return tensors.
Tensor tree_text(const Tensor& encoded) {
  const std::string text = decoded(encoded).to_string();
  const Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<uint8_t>());
  return bytes;
}
// Of all trees in the tensor.
Tensor tree_cost(const Tensor& encoded) { return torch::tensor(trees_cost(encoded), at::kLong); }

TORCH_LIBRARY_FRAGMENT(strata, m) {
  m.def("tree_windows(int tokens, int[] windows, int shift, str domain) -> Tensor", opaque(tree_windows));
  m.def("tree_star(int tokens, str domain) -> Tensor", opaque(tree_star));
  m.def("tree_with_ends(Tensor encoded, int before, int behind) -> Tensor", opaque(tree_with_ends_of));
  m.def("tree_quadtree(int height, int width) -> Tensor", opaque(tree_quadtree));
  m.def("tree_quadtree_order(int height, int width) -> Tensor", opaque(tree_quadtree_order));
  m.def("tree_parents(int[] parents, str domain) -> Tensor", opaque(tree_parents));
  m.def("tree_brackets(str text) -> Tensor", opaque(tree_brackets));
  m.def("tree_from_spans(int tokens, Tensor spans, str domain) -> Tensor", opaque(tree_of_spans));
  m.def("tree_from_offsets(Tensor[] levels, str domain) -> Tensor", opaque(tree_of_offsets));
  m.def("tree_from_character_spans(Tensor offsets, Tensor spans, str domain) -> Tensor",
        opaque(tree_of_character_spans));
  m.def("tree_with_domain(Tensor encoded, str domain, int width) -> Tensor", opaque(tree_in_domain));
  m.def("tree_from_text(str text, bool characters) -> (Tensor, Tensor)", opaque(tree_from_text));
  m.def("tree_from_markdown(str text, int patch_rows, int patch_columns) -> (Tensor, Tensor)",
        opaque(tree_from_markdown));
  m.def("tree_from_json(str text, int patch_rows, int patch_columns) -> (Tensor, Tensor)", opaque(tree_from_json));
  m.def("tree_spans(Tensor encoded) -> Tensor", opaque(tree_spans));
  m.def("tree_text(Tensor encoded) -> Tensor", opaque(tree_text));
  m.def("tree_cost(Tensor encoded) -> Tensor", opaque(tree_cost));
  m.def("sinusoidal_positions(int tables, int places) -> Tensor", opaque(sinusoidal_positions));
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
