// libFuzzer target: whatever the bytes, a builder refuses them or gives a tree that holds together. The first byte
// selects the builder.
#include "fuzz.h"
#include "strata/document.h"
#include "strata/tree.h"

namespace {

using strata::fuzz::check_message;
using strata::fuzz::require;

// One leaf per token, in the order of the source and inside of it.
void check(const strata::Status& status, const strata::Document& document, const std::string& text) {
  if (!status.ok()) {
    check_message(status.message());
    require(document.tree.tokens() == 0 && document.leaves.empty());
    return;
  }
  require(document.tree.tokens() == static_cast<int64_t>(document.leaves.size()));
  int64_t last = 0;
  for (const strata::Document::Leaf& leaf : document.leaves) {
    require(leaf.begin >= last && leaf.begin < leaf.end && leaf.end <= static_cast<int64_t>(text.size()));
    last = leaf.image ? leaf.begin : leaf.end;
  }
  require(!document.tree.to_string().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  strata::Document document;
  strata::Tree tree;
  switch (data[0] % 7) {
    case 0:
      check(strata::document_from_text(text, strata::TextLeaf::kWord, &document), document, text);
      break;
    case 1:
      check(strata::document_from_text(text, strata::TextLeaf::kCharacter, &document), document, text);
      break;
    case 2:
      check(strata::document_from_markdown(text, 2, 3, &document), document, text);
      break;
    case 3:
      check(strata::document_from_json(text, 2, 3, &document), document, text);
      break;
    case 4: {
      int64_t words = 0;
      bool inside = false;
      for (char c : text) {
        const bool blank = c == ' ' || c == '\t' || c == '\r' || c == '\n';
        words += !blank && !inside;
        inside = !blank;
      }
      const strata::Status status = strata::tree_from_brackets(text, &tree);
      if (!status.ok()) check_message(status.message());
      require(tree.tokens() == (status.ok() ? words : 0));
      break;
    }
    case 5:
      check(strata::document_from_text(text, strata::TextLeaf::kByte, &document), document, text);
      break;
    default: {
      std::vector<int64_t> parent, children(text.size(), 0);
      for (char c : text) parent.push_back(static_cast<signed char>(c));
      const strata::Status status = strata::tree_from_parents(parent, strata::Domain::kSet, &tree);
      if (!status.ok()) {
        check_message(status.message());
        break;
      }
      for (int64_t p : parent) {
        if (p >= 0) ++children[p];
      }
      int64_t leaves = 0;
      for (int64_t n : children) leaves += n == 0;
      require(tree.tokens() == leaves);
    }
  }
  return 0;
}
