// Trees from spans: of tokens, of characters, or given by their boundaries.
#include <algorithm>
#include <limits>

#include "base/loose_tree.h"
#include "base/text.h"
#include "strata/tree.h"

namespace strata {
namespace {

constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

std::string shown(const char* name, int64_t index, Span span) {
  return text(name, "[", index, "] = (", span.begin, ", ", span.end, ")");
}

// The spans that are not empty, outer ones first, then from left to right. Two that cross are an error.
Status sort_nested(const std::vector<Span>& spans, int64_t limit, const char* limit_name, std::vector<Span>* sorted) {
  std::vector<int64_t> order;
  for (int64_t n = 0; n < static_cast<int64_t>(spans.size()); ++n) {
    const Span span = spans[n];
    if (span.begin < 0 || span.begin > span.end || span.end > limit) {
      return invalid("spans[", n, "]: expected 0 <= begin <= end <= ", limit_name, ", got (", span.begin, ", ",
                     span.end, ")");
    }
    if (span.begin < span.end) order.push_back(n);
  }
  std::sort(order.begin(), order.end(), [&](int64_t x, int64_t y) {
    if (spans[x].begin != spans[y].begin) return spans[x].begin < spans[y].begin;
    return spans[x].end != spans[y].end ? spans[x].end > spans[y].end : x < y;
  });
  std::vector<int64_t> open;
  for (int64_t n : order) {
    while (!open.empty() && spans[open.back()].end <= spans[n].begin) open.pop_back();
    if (!open.empty() && spans[open.back()].end < spans[n].end) {
      return invalid(shown("spans", open.back(), spans[open.back()]), " and ", shown("spans", n, spans[n]),
                     " cross; expected one inside the other, or nothing shared");
    }
    open.push_back(n);
    sorted->push_back(spans[n]);
  }
  return {};
}

// `spans` as sort_nested leaves them.
Status build_nested(int64_t tokens, const std::vector<Span>& spans, Domain domain, Tree* tree) {
  struct Open {
    Span span;
    int32_t family;
  };
  LooseTree loose;
  if (tokens == 0) return loose.finish(tree);
  std::vector<Open> open = {{{0, tokens}, loose.add_family(domain)}};
  const auto add_tokens_before = [&](int64_t end) {
    while (loose.tokens < end) loose.add_token(open.back().family);
  };
  for (const Span span : spans) {
    while (open.back().span.end <= span.begin) {
      add_tokens_before(open.back().span.end);
      open.pop_back();
    }
    if (span.end - span.begin < 2 || span == open.back().span) continue;
    add_tokens_before(span.begin);
    open.push_back({span, loose.add_family(domain, open.back().family)});
  }
  for (; !open.empty(); open.pop_back()) add_tokens_before(open.back().span.end);
  for (LooseTree::Family& family : loose.families) family.width = domain == Domain::kGrid ? 1 : 0;
  return loose.finish(tree);
}

}  // namespace

Status tree_from_spans(int64_t tokens, const std::vector<Span>& spans, Domain domain, Tree* tree) {
  if (tokens < 0 || tokens > kMaxTokens) return invalid("tokens: expected 0 to 2^31 - 1, got ", tokens);
  std::vector<Span> sorted;
  if (Status s = sort_nested(spans, tokens, text("tokens = ", tokens).c_str(), &sorted); !s.ok()) return s;
  return build_nested(tokens, sorted, domain, tree);
}

Status tree_from_offsets(const std::vector<std::vector<int64_t>>& levels, Domain domain, Tree* tree) {
  if (levels.empty()) return invalid("offsets: expected at least one level, got none");
  std::vector<Span> spans;
  std::vector<int64_t> below;  // where each item of the level below begins, in tokens, and one past its end
  for (size_t h = 0; h < levels.size(); ++h) {
    const std::vector<int64_t>& level = levels[h];
    if (level.empty() || level.front() != 0)
      return invalid("offsets[", h, "]: expected 0 as the first boundary, got ",
                     level.empty() ? "none" : text(level.front()));
    for (size_t n = 1; n < level.size(); ++n) {
      if (level[n] < level[n - 1]) {
        return invalid("offsets[", h, "][", n, "]: expected at least ", level[n - 1], ", the boundary before it, got ",
                       level[n]);
      }
    }
    const int64_t items = h == 0 ? kMaxTokens : static_cast<int64_t>(below.size()) - 1;
    if (level.back() > items || (h > 0 && level.back() < items)) {
      return invalid("offsets[", h, "]: expected ",
                     h == 0 ? "at most 2^31 - 1" : text(items, ", the number of items of the level below,"),
                     " as the last boundary, got ", level.back());
    }
    std::vector<int64_t> here;
    here.reserve(level.size());
    for (int64_t boundary : level) here.push_back(h == 0 ? boundary : below[boundary]);
    for (size_t n = 1; n < here.size(); ++n) spans.push_back({here[n - 1], here[n]});
    below = std::move(here);
  }
  return tree_from_spans(levels[0].back(), spans, domain, tree);
}

Status tree_from_character_spans(const std::vector<Span>& tokens, const std::vector<Span>& spans, Domain domain,
                                 Tree* tree) {
  const auto count = static_cast<int64_t>(tokens.size());
  if (count > kMaxTokens) return invalid("tokens: expected at most 2^31 - 1, got ", count);
  std::vector<int64_t> place, last;  // the tokens that are not special, and their last characters
  for (int64_t t = 0; t < count; ++t) {
    if (tokens[t].begin < 0 || tokens[t].begin > tokens[t].end) {
      return invalid("offsets[", t, "]: expected 0 <= begin <= end, got (", tokens[t].begin, ", ", tokens[t].end, ")");
    }
    if (tokens[t].begin == tokens[t].end) continue;
    if (!last.empty() && tokens[t].end - 1 < last.back()) {
      return invalid(shown("offsets", t, tokens[t]), " ends before ",
                     shown("offsets", place.back(), tokens[place.back()]),
                     "; expected the tokens of one text, in its order");
    }
    place.push_back(t);
    last.push_back(tokens[t].end - 1);
  }
  std::vector<Span> sorted, covered;
  const int64_t any = std::numeric_limits<int64_t>::max();
  if (Status s = sort_nested(spans, any, "2^63 - 1", &sorted); !s.ok()) return s;
  if (!place.empty()) covered.push_back({place.front(), place.back() + 1});
  for (const Span span : sorted) {  // the order remains: an outer span covers what the inner one covers
    const auto first = std::lower_bound(last.begin(), last.end(), span.begin);
    const auto end = std::lower_bound(first, last.end(), span.end);
    if (first != end) covered.push_back({place[first - last.begin()], place[end - last.begin() - 1] + 1});
  }
  return build_nested(count, covered, domain, tree);
}

Status tree_with_domain(const Tree& tree, Domain domain, int64_t width, Tree* changed) {
  const bool grid = domain == Domain::kGrid;
  if (!grid && width != 0) {
    return invalid("width: expected 0, as only a grid has one, got ", width, " for the domain ", domain_name(domain));
  }
  if (grid && (width < 1 || width > kMaxTokens)) return invalid("width: expected 1 or more for a grid, got ", width);
  return Tree::make(tree.tokens(), tree.child_begin(), tree.children(), std::vector<Domain>(tree.families(), domain),
                    std::vector<int32_t>(tree.families(), static_cast<int32_t>(width)), changed);
}

}  // namespace strata
