// The tree of an image: 2 x 2 grids of grids.
#include "strata/tree.h"

#include <algorithm>
#include <limits>

#include "base/loose_tree.h"
#include "base/text.h"

namespace strata {
namespace {

struct Square {
  int64_t row, column, size;
};

// The (up to four) quarters of a square that reach into the image, row by row.
std::vector<Square> quarters(const Square& square, int64_t height, int64_t width) {
  std::vector<Square> parts;
  const int64_t half = square.size / 2;
  for (int64_t r : {square.row, square.row + half}) {
    for (int64_t c : {square.column, square.column + half}) {
      if (r < height && c < width) parts.push_back({r, c, half});
    }
  }
  return parts;
}

int64_t covering_power_of_two(int64_t height, int64_t width) {
  int64_t size = 2;
  while (size < std::max(height, width)) size *= 2;
  return size;
}

}  // namespace

std::vector<int64_t> quadtree_order(int64_t height, int64_t width) {
  std::vector<int64_t> order;
  if (height < 1 || width < 1) return order;
  std::vector<Square> stack = {{0, 0, covering_power_of_two(height, width)}};
  while (!stack.empty()) {
    const Square square = stack.back();
    stack.pop_back();
    if (square.size == 1) {
      order.push_back(square.row * width + square.column);
      continue;
    }
    const std::vector<Square> parts = quarters(square, height, width);
    stack.insert(stack.end(), parts.rbegin(), parts.rend());
  }
  return order;
}

Status quadtree(int64_t height, int64_t width, Tree* tree) {
  if (height < 0 || width < 0) return invalid("height, width: expected 0 or more, got ", height, " and ", width);
  if (height > 32768 || width > 32768)
    return invalid("height, width: expected at most 32768, got ", height, " and ", width);
  LooseTree loose;
  if (height == 0 || width == 0) return loose.finish(tree);
  struct Pending {
    Square square;
    int32_t family;
  };
  std::vector<Pending> stack = {{{0, 0, covering_power_of_two(height, width)}, loose.add_family(Domain::kGrid)}};
  while (!stack.empty()) {  // depth first, so that tokens are numbered in quadtree_order
    const Pending pending = stack.back();
    stack.pop_back();
    if (pending.square.size == 1) {
      loose.add_token(pending.family);
      continue;
    }
    const std::vector<Square> parts = quarters(pending.square, height, width);
    const bool two_columns = parts.size() > 1 && parts[0].row == parts[1].row;
    loose.families[pending.family].width = two_columns ? 2 : 1;
    std::vector<Pending> next;
    next.reserve(parts.size());
    for (const Square& part : parts) {
      next.push_back({part, part.size == 1 ? pending.family : loose.add_family(Domain::kGrid, pending.family)});
    }
    stack.insert(stack.end(), next.rbegin(), next.rend());
  }
  return loose.finish(tree);
}

}  // namespace strata
