// Nested signals from text (docs/MATH.md, section 2.1): builders of a tree whose leaves are places in a source text.
//
// Each builder takes UTF-8. It rejects text that it cannot read, with the byte position and the reason, and then leaves
// the result unchanged. Nothing recurses, so only memory bounds the depth. Families without leaves are omitted; a text
// without leaves gives a tree without tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/export.h"
#include "strata/status.h"
#include "strata/tree.h"

namespace strata {

struct Document {
  struct Leaf {
    int64_t begin = 0, end = 0;  // byte range in the source; of an image leaf, the range of the whole image markup
    bool image = false;
    int32_t row = 0, column = 0;  // patch position, for images
  };
  Tree tree;
  std::vector<Leaf> leaves;  // leaf t is token t of the tree
};

enum class TextLeaf { kWord, kCharacter, kByte };

// Paragraphs (separated by blank lines) of sentences of words, and words of characters with TextLeaf::kCharacter; all
// families are sequences. TextLeaf::kByte makes every byte of the text a leaf: whitespace belongs to the word after it,
// at the end of the text to the last word. A word is a run of code points without whitespace, a character is one code
// point. A sentence ends with a word that ends in one of . ! ? … 。 ！ ？, optionally followed by closing quotes and
// brackets.
STRATA_API Status document_from_text(const std::string& text, TextLeaf leaf, Document* document);

// A section is a sequence of its heading, its blocks and its subsections: a "##" section lies inside the "#" section
// before it. Blocks are
// - paragraphs: sequences of sentences of words;
// - lists: sequences of items (lines that start with -, *, + or "1.", and the lines that continue them). An item is
//   read like a paragraph; indented items belong to the same list;
// - code blocks between ``` fences: sequences of lines of words;
// - images ![alt](url): grids of patch_rows x patch_columns image leaves. An image alone in its paragraph is a block,
//   an image inside a sentence is a child of that sentence. Neither alt nor url may hold a bracket of its own kind.
// Marks (#, list markers, fences and their language) are not leaves.
STRATA_API Status document_from_markdown(const std::string& text, int patch_rows, int patch_columns,
                                         Document* document);

// An array is a sequence of its elements, an object a set of its members, a member the sequence of the words of its key
// and then its value; a string is a sequence of words (escapes are kept as written and never split a word); a number or
// a literal is one leaf. An object of the exact form {"image": "..."} is an image: a grid of patch_rows x patch_columns
// leaves.
STRATA_API Status document_from_json(const std::string& text, int patch_rows, int patch_columns, Document* document);

}  // namespace strata
