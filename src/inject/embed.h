// Sentence embeddings of a pretrained encoder: the mean of its last hidden states, original or with HSA injected. Knows
// no torch, so that the command need not.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace strata {

struct EmbedOptions {
  std::string layers = "none";     // that attend by a tree: none, late, or numbers from 0: "3,5"
  std::string tree = "sentences";  // or balanced, windows
  int64_t branching = 16;          // children of a family at most
  bool exact_special = true;       // special tokens go on attending to all tokens
  int64_t length = 0;              // tokens of a text at most; 0: as many as the model has positions
  bool normalize = false;          // to length 1
};

struct Embedding {
  std::vector<float> values;
  int64_t tokens = 0;
  bool cut = false;  // the text was longer
};

class Embedder {
 public:
  // A Hugging Face folder of a BERT or RoBERTa encoder. Throws data and usage errors.
  Embedder(const std::filesystem::path& folder, const EmbedOptions& options);
  ~Embedder();
  std::vector<Embedding> operator()(const std::vector<std::string>& texts) const;
  int64_t size() const;     // numbers of an embedding
  int64_t longest() const;  // tokens of a text that are read

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A float32 matrix in NumPy's format.
std::string to_npy(const std::vector<Embedding>& rows, int64_t size);

}  // namespace strata
