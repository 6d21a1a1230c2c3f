#include "strata/tree.h"

#include <algorithm>
#include <limits>
#include <ostream>
#include <sstream>

#include "base/text.h"

namespace strata {

const char* domain_name(Domain domain) {
  switch (domain) {
    case Domain::kSet:
      return "set";
    case Domain::kSequence:
      return "sequence";
    case Domain::kGrid:
      return "grid";
  }
  return "unknown";
}

Status Tree::make(int64_t tokens, std::vector<int32_t> child_begin, std::vector<int32_t> children,
                  std::vector<Domain> domains, std::vector<int32_t> widths, Tree* tree) {
  if (tree == nullptr) return invalid("tree: expected a place for the result, got null");
  const auto families = static_cast<int64_t>(domains.size());
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (tokens < 0 || tokens > kMax || families > kMax) return invalid("tokens: expected 0 to 2^31 - 1, got ", tokens);
  if (static_cast<int64_t>(child_begin.size()) != families + 1 || child_begin.front() != 0 ||
      child_begin.back() != static_cast<int64_t>(children.size())) {
    return invalid("child_begin: expected families + 1 = ", families + 1, " offsets from 0 to ", children.size());
  }
  if (static_cast<int64_t>(widths.size()) != families) {
    return invalid("widths: expected one per family (", families, "), got ", widths.size());
  }
  if (families == 0 && tokens > 0) return invalid("root: expected a family over ", tokens, " tokens, got none");

  // Breadth first: the inner children of families 0, 1, 2 .. are families 1, 2, 3 .. in exactly this order. This rules
  // out cycles, shared children and orphans.
  int64_t next_family = 1;
  for (int64_t f = 0; f < families; ++f) {
    if (child_begin[f] > child_begin[f + 1] || child_begin[f + 1] > child_begin[families]) {
      return invalid("family ", f, ": child_begin goes from ", child_begin[f], " to ", child_begin[f + 1],
                     "; expected increasing offsets of at most ", child_begin[families]);
    }
    if (child_begin[f] == child_begin[f + 1])
      return invalid("family ", f, ": has no children; a family needs at least one");
    for (int32_t at = child_begin[f]; at < child_begin[f + 1]; ++at) {
      const int32_t child = children[at];
      if (child >= 0 && child >= tokens)
        return invalid("family ", f, ": token ", child, " is out of range 0 to ", tokens - 1);
      if (child < 0 && ~child >= families)
        return invalid("family ", f, ": inner child ", ~child, " is out of range 1 to ", families - 1);
      if (child < 0 && ~child != next_family) {
        return invalid("family ", f, ": inner child ", ~child, " breaks the breadth-first order, the next one is ",
                       next_family, "; every family but the root has exactly one parent");
      }
      next_family += child < 0;
    }
    const auto size = child_begin[f + 1] - child_begin[f];
    if (domains[f] == Domain::kGrid && (widths[f] < 1 || widths[f] > size)) {
      return invalid("family ", f, ": expected a grid width of 1 to ", size, ", its number of children, got ",
                     widths[f]);
    }
  }
  if (families > 0 && next_family != families) return invalid("family ", next_family, ": is not a child of any family");

  // Leaves in sequence order: bottom-up, each family covers one contiguous range of tokens.
  std::vector<int64_t> first(families), last(families);
  for (int64_t f = families - 1; f >= 0; --f) {
    int64_t end = -1;
    for (int32_t at = child_begin[f]; at < child_begin[f + 1]; ++at) {
      const int32_t child = children[at];
      const int64_t begin = child >= 0 ? child : first[~child];
      if (end >= 0 && begin != end) {
        return invalid("family ", f, ": child ", at - child_begin[f], " begins at token ", begin,
                       ", the child before it ends at ", end, "; expected children without overlap or gap");
      }
      if (end < 0) first[f] = begin;
      end = child >= 0 ? child + 1 : last[~child];
    }
    last[f] = end;
  }
  if (families > 0 && (first[0] != 0 || last[0] != tokens)) {
    return invalid("root: covers tokens ", first[0], " to ", last[0] - 1, ", expected 0 to ", tokens - 1);
  }

  Tree made;
  made.tokens_ = tokens;
  made.child_begin_ = std::move(child_begin);
  made.children_ = std::move(children);
  for (int64_t f = 0; f < families; ++f) {
    const bool grid = domains[f] == Domain::kGrid;
    made.domain_.push_back(static_cast<uint8_t>(domains[f]));
    made.width_.push_back(grid ? widths[f] : 0);
    made.kind_.push_back(grid ? widths[f] : domains[f] == Domain::kSequence ? 0 : -1);
  }
  *tree = std::move(made);
  return {};
}

int64_t Tree::cost(int levels) const { return view().cost(levels); }

TreeView Tree::view() const { return {tokens_, families(), child_begin_.data(), children_.data(), kind_.data()}; }

int64_t Tree::position_tables() const {
  int32_t highest = -1;
  for (int32_t kind : kind_) highest = std::max(highest, kind);
  return 1 + highest;
}

std::vector<Span> Tree::spans() const {
  std::vector<Span> spans(families());
  const auto of = [&](int32_t child) { return child >= 0 ? Span{child, child + 1} : spans[~child]; };
  for (int64_t f = families() - 1; f >= 0; --f)
    spans[f] = {of(children_[child_begin_[f]]).begin, of(children_[child_begin_[f + 1] - 1]).end};
  return spans;
}

int64_t Tree::largest_family() const {
  int64_t largest = 0;
  for (int64_t f = 0; f < families(); ++f) largest = std::max<int64_t>(largest, child_begin_[f + 1] - child_begin_[f]);
  return largest;
}

int64_t Tree::depth() const {
  std::vector<int32_t> level(families(), 1);
  int64_t deepest = families() > 0 ? 1 : 0;
  for (int64_t f = 0; f < families(); ++f) {
    for (int32_t at = child_begin_[f]; at < child_begin_[f + 1]; ++at) {
      if (children_[at] < 0) deepest = std::max<int64_t>(deepest, level[~children_[at]] = level[f] + 1);
    }
  }
  return deepest;
}

std::string Tree::to_string(int64_t max_lines) const {
  std::ostringstream out;
  out << "Tree: " << tokens_ << " tokens, " << families() << " families, depth " << depth() << ", score products "
      << cost() << "\n";
  // An explicit stack of (node, indentation), children pushed in reverse.
  std::vector<std::pair<int32_t, int32_t>> stack;
  if (families() > 0) stack.emplace_back(~0, 1);
  int64_t lines = 0;
  while (!stack.empty()) {
    const auto [node, indent] = stack.back();
    stack.pop_back();
    if (++lines > max_lines) {
      out << "  .. and more\n";
      break;
    }
    out << std::string(2 * static_cast<size_t>(std::min(indent, 40)), ' ');
    if (node >= 0) {
      out << "token " << node << "\n";
      continue;
    }
    const int64_t f = ~node;
    const int32_t begin = child_begin_[f], end = child_begin_[f + 1];
    const bool leaves_only =
        std::all_of(&children_[begin], &children_[begin] + (end - begin), [](int32_t c) { return c >= 0; });
    out << domain_name(domain(f)) << " of " << end - begin;
    if (domain(f) == Domain::kGrid) out << ", " << width_[f] << " wide";
    if (leaves_only) {
      out << ": tokens " << children_[begin] << " .. " << children_[end - 1] << "\n";
      continue;
    }
    out << "\n";
    for (int32_t at = end - 1; at >= begin; --at) stack.emplace_back(children_[at], indent + 1);
  }
  return out.str();
}

std::ostream& operator<<(std::ostream& out, const Tree& tree) { return out << tree.to_string(); }

}  // namespace strata
