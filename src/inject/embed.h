// Sentence embeddings of a pretrained encoder: the mean of its last hidden states, original or with HSA injected. This
// header does not include torch, so that the command does not need to.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "util/options.h"

namespace strata {

struct EmbedOptions {
  std::string layers = "none";       // that attend by a tree: none, late, or numbers from 0: "3,5"
  std::string tree = "sentences";    // or balanced, windows
  int64_t branching = 16;            // largest number of children of a family
  bool approximate_special = false;  // special tokens attend by the tree as well; otherwise to all tokens
  int64_t length = 0;                // largest number of tokens of a text; 0: as many as the model has positions
  bool normalize = false;            // to length 1
  int64_t batch = 32, threads = 0;
  bool check_digest = true;  // refuse weights that differ from the digest in their file
};
void declare(OptionTable& table, EmbedOptions& options);

struct Embedding {
  std::vector<float> values;
  int64_t tokens = 0;
  bool cut = false;  // the text was longer than that
};

class Embedder {
 public:
  // A Hugging Face folder of a BERT or RoBERTa encoder. Throws data and usage errors.
  Embedder(const std::filesystem::path& folder, const EmbedOptions& options);
  ~Embedder();
  std::vector<Embedding> operator()(const std::vector<std::string>& texts) const;
  int64_t size() const;     // numbers of an embedding
  int64_t longest() const;  // largest number of tokens that are read of a text

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A float32 matrix in NumPy's format.
std::string to_npy(const std::vector<Embedding>& rows, int64_t size);

}  // namespace strata
