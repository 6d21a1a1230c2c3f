// Builders of trees. Those that read input build a LooseTree first and store it breadth first at the end.
#include <algorithm>
#include <limits>

#include "base/loose_tree.h"
#include "base/text.h"
#include "strata/tree.h"

namespace strata {

Status LooseTree::finish(Tree* tree) const {
  std::vector<int32_t> child_begin = {0}, children, order = {0}, widths;
  std::vector<Domain> domains;
  if (families.empty()) return Tree::make(tokens, {0}, {}, {}, {}, tree);
  for (size_t at = 0; at < order.size(); ++at) {  // breadth first; `order` grows as families are met
    const Family& family = families[order[at]];
    for (int32_t child : family.children) {
      if (child >= 0) {
        children.push_back(child);
      } else {
        children.push_back(~static_cast<int32_t>(order.size()));
        order.push_back(~child);
      }
    }
    child_begin.push_back(static_cast<int32_t>(children.size()));
    domains.push_back(family.domain);
    widths.push_back(family.width);
  }
  return Tree::make(tokens, std::move(child_begin), std::move(children), std::move(domains), std::move(widths), tree);
}

namespace {

Status check_tokens(int64_t tokens) {
  if (tokens >= 0 && tokens <= std::numeric_limits<int32_t>::max()) return {};
  return invalid("tokens: expected 0 to 2^31 - 1, got ", tokens);
}

}  // namespace

Status star_tree(int64_t tokens, Domain domain, Tree* tree) {
  if (Status s = check_tokens(tokens); !s.ok()) return s;
  LooseTree loose;
  if (tokens > 0) {
    const int32_t root = loose.add_family(domain);
    for (int64_t t = 0; t < tokens; ++t) loose.add_token(root);
  }
  return loose.finish(tree);
}

Status window_tree(int64_t tokens, const std::vector<int64_t>& windows, int64_t shift, Domain domain, Tree* tree) {
  if (Status s = check_tokens(tokens); !s.ok()) return s;
  if (windows.empty()) return invalid("windows: expected at least one size, got none");
  for (size_t h = 0; h < windows.size(); ++h) {
    if (windows[h] < 2) return invalid("windows[", h, "]: expected 2 or more children per family, got ", windows[h]);
  }
  if (shift < 0 || shift >= windows[0]) return invalid("shift: expected 0 to ", windows[0] - 1, ", got ", shift);
  if (tokens == 0) return LooseTree().finish(tree);

  // Height by height from the tokens up; `below` counts the nodes of the height below.
  struct Level {
    std::vector<int64_t> begin;  // of each family: index of its first child in the row below, and one past the end
  };
  std::vector<Level> levels;
  int64_t below = tokens;
  do {
    const int64_t window = std::min(windows[std::min(levels.size(), windows.size() - 1)], below);
    Level level;
    level.begin.push_back(0);
    const int64_t first = levels.empty() && shift > 0 ? shift : window;
    for (int64_t at = first; at < below; at += std::max<int64_t>(1, window)) level.begin.push_back(at);
    level.begin.push_back(below);
    below = static_cast<int64_t>(level.begin.size()) - 1;
    levels.push_back(std::move(level));
  } while (below > 1);

  std::vector<int32_t> child_begin = {0}, children;
  std::vector<Domain> domains;
  int64_t next_family = 1;
  for (size_t h = levels.size(); h-- > 0;) {
    const std::vector<int64_t>& begin = levels[h].begin;
    for (size_t f = 0; f + 1 < begin.size(); ++f) {
      for (int64_t child = begin[f]; child < begin[f + 1]; ++child) {
        children.push_back(h == 0 ? static_cast<int32_t>(child) : ~static_cast<int32_t>(next_family++));
      }
      child_begin.push_back(static_cast<int32_t>(children.size()));
      domains.push_back(domain);
    }
  }
  std::vector<int32_t> widths(domains.size(), domain == Domain::kGrid ? 1 : 0);
  return Tree::make(tokens, std::move(child_begin), std::move(children), std::move(domains), std::move(widths), tree);
}

Status balanced_tree(int64_t tokens, int64_t branching, Domain domain, Tree* tree) {
  if (branching < 2) return invalid("branching: expected 2 or more, got ", branching);
  return window_tree(tokens, {branching}, 0, domain, tree);
}

Status tree_with_ends(const Tree& inner, int64_t before, int64_t behind, Tree* tree) {
  if (before < 0 || behind < 0) return invalid("before, behind: expected 0 or more, got ", before, " and ", behind);
  if (inner.tokens() == 0) return star_tree(before + behind, Domain::kSequence, tree);
  std::vector<int32_t> begin = {0}, children, widths = {0};
  std::vector<Domain> domains = {Domain::kSequence};
  for (int64_t t = 0; t < before; ++t) children.push_back(static_cast<int32_t>(t));
  children.push_back(~1);  // the families of `inner` follow the new root
  for (int64_t t = 0; t < behind; ++t) children.push_back(static_cast<int32_t>(before + inner.tokens() + t));
  begin.push_back(static_cast<int32_t>(children.size()));
  for (int64_t family = 0; family < inner.families(); ++family) {
    for (int32_t at = inner.child_begin()[family]; at < inner.child_begin()[family + 1]; ++at) {
      const int32_t child = inner.children()[at];
      children.push_back(child < 0 ? child - 1 : child + static_cast<int32_t>(before));
    }
    begin.push_back(static_cast<int32_t>(children.size()));
    domains.push_back(inner.domain(family));
    widths.push_back(inner.width(family));
  }
  return Tree::make(before + inner.tokens() + behind, std::move(begin), std::move(children), std::move(domains),
                    std::move(widths), tree);
}

Status tree_from_parents(const std::vector<int64_t>& parent, Domain domain, Tree* tree) {
  const auto nodes = static_cast<int64_t>(parent.size());
  LooseTree loose;
  if (nodes == 0) return loose.finish(tree);
  int64_t root = -1;
  std::vector<int64_t> child_count(nodes, 0);
  for (int64_t n = 0; n < nodes; ++n) {
    if (parent[n] < -1 || parent[n] >= nodes || parent[n] == n) {
      return invalid("parent[", n, "]: expected -1 (the root) or another node below ", nodes, ", got ", parent[n]);
    }
    if (parent[n] == -1) {
      if (root >= 0)
        return invalid("parent[", n, "]: is a second root; expected one, and node ", root, " is the first");
      root = n;
    } else {
      ++child_count[parent[n]];
    }
  }
  if (root < 0) return invalid("parent: expected one root (-1), got none; the nodes form a cycle");
  std::vector<std::vector<int64_t>> children(nodes);
  std::vector<int32_t> first_token(nodes, std::numeric_limits<int32_t>::max());
  for (int64_t n = 0; n < nodes; ++n) {
    if (child_count[n] == 0) first_token[n] = loose.tokens++;
    if (parent[n] >= 0) children[parent[n]].push_back(n);
  }
  std::vector<int64_t> order = {root};  // from the root down; nodes on a cycle are not reached
  for (size_t at = 0; at < order.size(); ++at)
    order.insert(order.end(), children[order[at]].begin(), children[order[at]].end());
  if (static_cast<int64_t>(order.size()) != nodes) {
    return invalid("parent: ", nodes - static_cast<int64_t>(order.size()), " nodes are not connected to the root ",
                   root, "; they form a cycle");
  }
  for (size_t at = order.size(); at-- > 1;) {
    first_token[parent[order[at]]] = std::min(first_token[parent[order[at]]], first_token[order[at]]);
  }
  // Children are sorted by their first token, not by their numbers.
  std::vector<int32_t> family(nodes, -1);
  family[root] = loose.add_family(domain);
  if (child_count[root] == 0) loose.families[0].children.push_back(0);
  for (int64_t node : order) {
    std::sort(children[node].begin(), children[node].end(),
              [&](int64_t x, int64_t y) { return first_token[x] < first_token[y]; });
    for (int64_t child : children[node]) {
      if (child_count[child] == 0) {
        loose.families[family[node]].children.push_back(first_token[child]);
      } else {
        family[child] = loose.add_family(domain, family[node]);
      }
    }
  }
  for (LooseTree::Family& f : loose.families) f.width = domain == Domain::kGrid ? 1 : 0;
  return loose.finish(tree);
}

Status tree_from_brackets(const std::string& text, Tree* tree) {
  LooseTree loose;
  std::vector<int32_t> open = {loose.add_family(Domain::kSequence)};
  size_t at = 0;
  while (true) {
    at = text.find_first_not_of(" \t\r\n", at);
    if (at == std::string::npos) break;
    const size_t end = std::min(text.find_first_of(" \t\r\n", at), text.size());
    const std::string word = text.substr(at, end - at);
    if (word[0] == '[') open.push_back(loose.add_family(Domain::kSequence, open.back()));
    loose.add_token(open.back());
    if (word == "]") {
      if (open.size() == 1) return invalid("brackets: \"]\" at byte ", at, " closes no bracket");
      open.pop_back();
    }
    at = end;
  }
  if (open.size() > 1) return invalid("brackets: ", open.size() - 1, " brackets are still open at the end of the text");
  if (loose.tokens == 0) loose.families.clear();
  return loose.finish(tree);
}

Status split_families(const Tree& tree, int64_t max_children, Tree* split) {
  if (max_children < 2) return invalid("max_children: expected 2 or more, got ", max_children);
  LooseTree loose;
  loose.tokens = static_cast<int32_t>(tree.tokens());
  const TreeView view = tree.view();
  for (int64_t f = 0; f < tree.families(); ++f) loose.add_family(tree.domain(f));
  for (int64_t f = 0; f < tree.families(); ++f) {
    std::vector<int32_t> row(view.children + view.child_begin[f], view.children + view.child_begin[f + 1]);
    if (tree.domain(f) == Domain::kGrid && static_cast<int64_t>(row.size()) > max_children) {
      return invalid("family ", f, ": a grid of ", row.size(), " children cannot be split into families of ",
                     max_children);
    }
    while (static_cast<int64_t>(row.size()) > max_children) {  // one more height: the row becomes a row of families
      const auto count = static_cast<int64_t>(row.size()), parts = (count + max_children - 1) / max_children;
      std::vector<int32_t> above;
      for (int64_t part = 0; part < parts; ++part) {
        above.push_back(~loose.add_family(tree.domain(f)));
        loose.families.back().children.assign(row.begin() + part * count / parts,
                                              row.begin() + (part + 1) * count / parts);
      }
      row = std::move(above);
    }
    loose.families[f].children = std::move(row);
    loose.families[f].width = tree.width(f);
  }
  return loose.finish(split);
}

}  // namespace strata
