#include "data/trees.h"

#include <cmath>

#include "data/listops.h"
#include "data/words.h"
#include "strata/document.h"
#include "tokenizer/tokenizer.h"
#include "util/error.h"

namespace strata {
namespace {

void check(const Status& status) {
  if (!status.ok()) throw data_error("tree: {}", status.message());
}

int64_t side_of(int64_t pixels) {
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(pixels))));
  if (side * side != pixels) throw data_error("tree: expected a square image for a quadtree, got {} pixels", pixels);
  return side;
}

std::string bracket_words(std::span<const Token> tokens) {
  std::string text;
  for (const Token token : tokens) {
    text += listops_word(token);
    text += ' ';
  }
  return text;
}

// The bytes, changed one by one so that the text builder can read them: an incomplete or broken character becomes
// letters, and the line breaks of web pages (<br />) become line ends and spaces.
std::string plain_text(std::span<const Token> tokens, bool ascii) {
  std::string text;
  for (const Token token : tokens) {
    const auto byte = static_cast<uint8_t>(token - 1);
    text += ascii && byte >= 0x80 ? 'x' : static_cast<char>(byte);
  }
  const std::string mark = "<br />", line_end = "\n     ";
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at))
    text.replace(at, mark.size(), line_end);
  return text;
}

Tree text_tree(std::span<const Token> tokens) {
  Document document;
  if (!document_from_text(plain_text(tokens, false), TextLeaf::kByte, &document).ok()) {
    check(document_from_text(plain_text(tokens, true), TextLeaf::kByte, &document));
  }
  return document.tree;
}

bool continues_word(std::string_view piece) {
  constexpr std::string_view kMark = kContinuation;
  return piece.size() > kMark.size() && piece.starts_with(kMark);
}

// Word pieces have no line breaks, but web pages have <br />, whose last piece is this one.
bool ends_line(std::span<const Token> tokens, size_t last, const std::vector<std::string>& words) {
  constexpr std::string_view kBreak[] = {"<", "br", "/", ">"};
  constexpr size_t kCount = std::size(kBreak);
  if (last + 1 < kCount) return false;
  for (size_t i = 0; i < kCount; ++i) {
    if (word_of(words, tokens[last + 1 - kCount + i]) != kBreak[i]) return false;
  }
  return true;
}

// One leaf per word. Bytes beyond ASCII become letters, and so does whitespace; a line break becomes a word that ends
// its paragraph. Pieces of one word are a family of leaves.
Tree word_tree(std::span<const Token> tokens, const std::vector<std::string>& words) {
  std::string text;
  std::vector<int64_t> begins;  // the first token of each word
  for (size_t t = 0; t < tokens.size(); ++t) {
    std::string word(word_of(words, tokens[t]));
    const bool goes_on = text.ends_with(' ') && continues_word(word);  // no word goes on behind a line break
    if (goes_on) {
      text.pop_back();  // the space
      word.erase(0, std::string_view(kContinuation).size());
    } else {
      begins.push_back(static_cast<int64_t>(t));
    }
    if (word == kLineBreak) {
      text += "|\n\n";
      continue;
    }
    for (char& c : word) c = c <= ' ' || c == 0x7f || static_cast<uint8_t>(c) >= 0x80 ? 'x' : c;
    text += (word.empty() ? "x" : word) + (ends_line(tokens, t, words) ? "\n\n" : " ");
  }
  Document document;
  check(document_from_text(text, TextLeaf::kWord, &document));
  if (begins.size() == tokens.size()) return document.tree;
  begins.push_back(static_cast<int64_t>(tokens.size()));
  std::vector<Span> spans;
  for (const Span span : document.tree.spans()) spans.push_back({begins[span.begin], begins[span.end]});
  for (size_t w = 0; w + 1 < begins.size(); ++w) spans.push_back({begins[w], begins[w + 1]});
  Tree tree;
  check(tree_from_spans(static_cast<int64_t>(tokens.size()), spans, Domain::kSequence, &tree));
  return tree;
}

// A caption below its image. Families are listed height by height, those of the image before those of the caption.
Tree captioned_tree(int64_t pixels, int64_t words, int64_t branching) {
  Tree row, parts[2], tree;
  const int64_t side = side_of(pixels);
  check(quadtree(side, side, &parts[0]));
  check(star_tree(words, Domain::kSequence, &row));
  check(split_families(row, branching, &parts[1]));
  if (pixels == 0 || words == 0) return pixels == 0 ? parts[1] : parts[0];
  struct Node {
    int part;
    int32_t family;
  };
  std::vector<Node> nodes = {{0, 0}, {1, 0}};
  std::vector<int32_t> begin = {0, 2}, children = {~1, ~2}, widths = {1};
  std::vector<Domain> domains = {Domain::kGrid};
  for (size_t at = 0; at < nodes.size(); ++at) {  // `nodes` grows as families are met
    const auto [part, family] = nodes[at];
    const Tree& from = parts[part];
    for (int32_t c = from.child_begin()[family]; c < from.child_begin()[family + 1]; ++c) {
      const int32_t child = from.children()[c];
      if (child >= 0) {
        children.push_back(child + (part == 0 ? 0 : static_cast<int32_t>(pixels)));
      } else {
        nodes.push_back({part, ~child});
        children.push_back(~static_cast<int32_t>(nodes.size()));
      }
    }
    begin.push_back(static_cast<int32_t>(children.size()));
    domains.push_back(from.domain(family));
    widths.push_back(from.width(family));
  }
  check(Tree::make(pixels + words, begin, children, domains, widths, &tree));
  return tree;
}

// The pixels in front of a caption: tokens below those of its words.
int64_t count_pixels(std::span<const Token> tokens) {
  return std::find_if(tokens.begin(), tokens.end(), [](Token token) { return token >= kByteVocabulary; }) -
         tokens.begin();
}

}  // namespace

const std::vector<std::string>& tree_kinds() {
  static const std::vector<std::string> kinds = {"brackets", "text", "quadtree", "captioned", "balanced", "star"};
  return kinds;
}

Tree TreeMaker::make(std::span<const Token> tokens) const {
  const auto length = static_cast<int64_t>(tokens.size());
  Tree tree, split;
  if (kind_ == "brackets") {
    check(tree_from_brackets(bracket_words(tokens), &tree));
  } else if (kind_ == "text") {
    tree = words_.empty() ? text_tree(tokens) : word_tree(tokens, words_);
  } else if (kind_ == "quadtree") {
    const int64_t side = side_of(length);
    check(quadtree(side, side, &tree));
    return tree;
  } else if (kind_ == "captioned") {
    const int64_t pixels = count_pixels(tokens);
    return captioned_tree(pixels, length - pixels, branching_);
  } else if (kind_ == "balanced") {
    check(balanced_tree(length, branching_, Domain::kSequence, &tree));
    return tree;
  } else {
    check(star_tree(length, Domain::kSet, &tree));
    return tree;
  }
  check(split_families(tree, branching_, &split));
  return split;
}

std::shared_ptr<const Tree> TreeMaker::tree(std::span<const Token> tokens) {
  if (kind_ == "brackets" || kind_ == "text") return std::make_shared<const Tree>(make(tokens));
  std::shared_ptr<const Tree>& known =
      by_length_[{kind_ == "captioned" ? count_pixels(tokens) : 0, static_cast<int64_t>(tokens.size())}];
  if (known == nullptr) known = std::make_shared<const Tree>(make(tokens));
  return known;
}

std::vector<int64_t> TreeMaker::order(std::span<const Token> tokens) const {
  if (kind_ != "quadtree" && kind_ != "captioned") return {};
  const auto length = static_cast<int64_t>(tokens.size());
  const int64_t side = side_of(kind_ == "captioned" ? count_pixels(tokens) : length);
  std::vector<int64_t> order = quadtree_order(side, side);
  for (int64_t word = side * side; word < length; ++word) order.push_back(word);
  return order;
}

}  // namespace strata
