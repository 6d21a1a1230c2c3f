// The tree that HSA attention uses for a row of tokens.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "strata/tree.h"

namespace strata {

// Kinds: "brackets" (the lists of an expression), "text" (paragraphs, sentences and words; if tokens are bytes or word
// pieces, also those of each word), "quadtree" (a square image, whose tokens are then taken in the order of
// quadtree_order()), "captioned" (a column of two: a quadtree, and below it the words of its caption), "balanced" and
// "star". Families of "brackets", "text" and captions are split into families of at most `branching` children.
const std::vector<std::string>& tree_kinds();

class TreeMaker {
 public:
  // words: the vocabulary of the tokens of "text"; empty: tokens are bytes.
  TreeMaker(std::string kind, int64_t branching, std::vector<std::string> words = {})
      : kind_(std::move(kind)), branching_(branching), words_(std::move(words)) {}

  std::shared_ptr<const Tree> tree(std::span<const Token> tokens);
  // The position in the row of every token of the tree; {} if the tree keeps the order.
  std::vector<int64_t> order(std::span<const Token> tokens) const;

  // How many position tables, and how many places in each, the families of these trees may use.
  // Words are a sequence and use table 0, the column of image and caption table 1, and 2 x 2 pixels table 2.
  int64_t position_tables() const { return kind_ == "quadtree" || kind_ == "captioned" ? 3 : 1; }
  int64_t position_places() const {
    return kind_ == "quadtree" ? 4 : kind_ == "captioned" ? std::max<int64_t>(branching_, 4) : branching_;
  }

 private:
  Tree make(std::span<const Token> tokens) const;

  std::string kind_;
  int64_t branching_;
  std::vector<std::string> words_;
  // For the kinds that depend only on the numbers of pixels and of all tokens.
  std::map<std::pair<int64_t, int64_t>, std::shared_ptr<const Tree>> by_length_;
};

}  // namespace strata
