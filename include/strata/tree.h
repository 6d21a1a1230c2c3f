// A nested signal: a tree over the tokens of one sequence (docs/MATH.md, section 2.1).
//
// Leaves are tokens, in sequence order. An inner node is a *family* of children with a domain, and covers a contiguous
// range of leaves. Families are stored breadth first: a forward pass over them goes top-down, a backward pass goes
// bottom-up. Nothing recurses, so a chain of a million families is a valid tree.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "strata/export.h"
#include "strata/status.h"

namespace strata {

enum class Domain : uint8_t { kSet, kSequence, kGrid };
STRATA_API const char* domain_name(Domain domain);

struct Span {  // [begin, end)
  int64_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

// A tree as the kernels read it. A child is a token t >= 0, or family f written as ~f.
struct TreeView {
  int64_t tokens = 0;
  int64_t families = 0;                  // 0 only when there are no tokens; family 0 is the root
  const int32_t* child_begin = nullptr;  // (families + 1): where each family's children start
  const int32_t* children = nullptr;
  const int32_t* kind = nullptr;  // (families): which position table a family uses, negative for none; see Tree::kind

  // What attention on this tree costs, in score products: the sum over families of children^2. With several levels, a
  // family of leaves multiplies each coarse row of its leaves once, and one with nodes multiplies all levels. Children
  // are read for several levels only.
  int64_t cost(int levels = 1) const {
    int64_t products = 0;
    for (int64_t f = 0; f < families; ++f) {
      const int32_t begin = child_begin[f], end = child_begin[f + 1];
      bool leaves = levels > 1;
      for (int32_t at = begin; at < end && leaves; ++at) leaves = children[at] >= 0;
      for (int l = 0; l < levels; ++l) {
        int64_t rows = end - begin;
        if (leaves && begin < end) rows = (children[end - 1] >> l) - (children[begin] >> l) + 1;
        products += rows * rows;
      }
    }
    return products;
  }
};

class STRATA_API Tree {
 public:
  Tree() = default;  // no tokens

  int64_t tokens() const { return tokens_; }
  int64_t families() const { return static_cast<int64_t>(domain_.size()); }
  int64_t depth() const;               // families on the longest path from the root to a leaf
  int64_t cost(int levels = 1) const;  // view().cost()

  const std::vector<int32_t>& child_begin() const { return child_begin_; }
  const std::vector<int32_t>& children() const { return children_; }
  Domain domain(int64_t family) const { return static_cast<Domain>(domain_[family]); }
  int32_t width(int64_t family) const { return width_[family]; }  // of a grid, in children; 0 otherwise

  // Which position table a family uses, the same for every tree: sequences use table 0, grids of width w table w; sets
  // (-1) and graphs (-2) have no positions. position_tables() is one more than the highest table that this tree uses.
  int32_t kind(int64_t family) const { return kind_[family]; }
  int64_t position_tables() const;
  int64_t largest_family() const;

  std::vector<Span> spans() const;  // the tokens of each family

  TreeView view() const;

  // An indented picture of at most max_lines lines: one per node, and one for a whole family of tokens.
  std::string to_string(int64_t max_lines = 60) const;

  // The general constructor: families breadth first, children as in TreeView. Everything is checked; an error names the
  // node.
  static Status make(int64_t tokens, std::vector<int32_t> child_begin, std::vector<int32_t> children,
                     std::vector<Domain> domains, std::vector<int32_t> widths, Tree* tree);

 private:
  int64_t tokens_ = 0;
  std::vector<int32_t> child_begin_ = {0};
  std::vector<int32_t> children_;
  std::vector<uint8_t> domain_;
  std::vector<int32_t> width_;
  std::vector<int32_t> kind_;
};

STRATA_API std::ostream& operator<<(std::ostream& out, const Tree& tree);

// ------------------------------------------------------------------------------------------------- builders

// One family holds all tokens: exactly softmax attention.
STRATA_API Status star_tree(int64_t tokens, Domain domain, Tree* tree);

// Left-packed: a family of height h ends at the multiples of branching^(h + 1), whatever the number of tokens.
STRATA_API Status balanced_tree(int64_t tokens, int64_t branching, Domain domain, Tree* tree);

// windows[h] children per family of height h, the last entry repeated up to the root. The first boundary lies at
// `shift` tokens (0 <= shift < windows[0]), so that trees with shifted boundaries can be compared.
STRATA_API Status window_tree(int64_t tokens, const std::vector<int64_t>& windows, int64_t shift, Domain domain,
                              Tree* tree);

// `inner` with `before` tokens in front of it and `behind` tokens after it, all of them siblings in a sequence under a
// new root. Trained transformers put much of their attention on the special tokens at the ends; inside a family they
// would be averaged with words.
STRATA_API Status tree_with_ends(const Tree& inner, int64_t before, int64_t behind, Tree* tree);

// A height x width image whose tokens are in the order of quadtree_order(): families are 2 x 2 grids (cut at the
// border).
STRATA_API Status quadtree(int64_t height, int64_t width, Tree* tree);
// order[t] = row * width + column of token t of quadtree(): the permutation of an image before attention.
STRATA_API std::vector<int64_t> quadtree_order(int64_t height, int64_t width);

// parent[n] is the parent of node n, -1 for the root. Nodes without children are tokens, in the order of their numbers;
// children are sorted by their first token.
STRATA_API Status tree_from_parents(const std::vector<int64_t>& parent, Domain domain, Tree* tree);

// "[MAX 2 9 [MIN 4 7 ] 0 ]": every whitespace-separated word is a token. A word that begins with '[' opens a family and
// is its first child; the word "]" closes the family and is its last child.
STRATA_API Status tree_from_brackets(const std::string& text, Tree* tree);

// The families are given by the tokens that they cover; the root covers all. Spans come in any order and must be
// nested: of two, one contains the other or they share nothing. Tokens become children of the smallest span around
// them. A span of fewer than two tokens, or one that repeats another, is left out: a family of one child is neutral.
STRATA_API Status tree_from_spans(int64_t tokens, const std::vector<Span>& spans, Domain domain, Tree* tree);

// Spans by their boundaries, as in ragged tensors: item n of a level holds the items levels[h][n] .. levels[h][n + 1] -
// 1 of the level below, the lowest level holds tokens. Each level begins at 0, does not decrease, and ends at the
// number of items of the level below. Items may be empty.
STRATA_API Status tree_from_offsets(const std::vector<std::vector<int64_t>>& levels, Domain domain, Tree* tree);

// Spans of characters (words, sentences, ..) over the tokens of a tokenizer. tokens[t] is the range of characters that
// token t was made from. A token belongs to every span that contains its last character: some tokenizers put the space
// before a word into the word's token. Special tokens have an empty range; those at both ends become siblings of the
// rest.
STRATA_API Status tree_from_character_spans(const std::vector<Span>& tokens, const std::vector<Span>& spans,
                                            Domain domain, Tree* tree);

// The same tree with another domain in every family. `width`: of grids, at most the children of the smallest family; 0
// for the other domains.
STRATA_API Status tree_with_domain(const Tree& tree, Domain domain, int64_t width, Tree* changed);

// The same tree with families of at most max_children children. A larger family gets as many heights of inner families
// of its own domain as needed, evenly filled. Grids that are too large are an error: splitting would separate rows.
STRATA_API Status split_families(const Tree& tree, int64_t max_children, Tree* split);

}  // namespace strata
