// What the header of a model file says about the model. Without torch.
#pragma once

#include <string>
#include <vector>

#include "model/model_config.h"

namespace strata {

// The header of a model file.
struct ModelCard {
  ModelConfig config;
  ModelShape shape;
  std::string task;
  std::string tree;                       // kind of tree of its rows
  std::vector<std::string> labels;        // of its classes
  std::vector<std::string> words;         // its vocabulary, if tokens are words or word pieces
  std::string pieces;                     // their tokenizer, if tokens are word pieces (data/pieces.h)
  std::string label_column, text_column;  // of the table it learned from; empty: no table, or an older file

  int64_t longest() const;  // the most tokens of a row that the model can read; 0: any number
  const char* tokens() const { return words.empty() ? "bytes" : pieces.empty() ? "words" : "pieces"; }

  Json to_json() const;
  static ModelCard from_json(const Json& json, const std::string& where);
};

inline constexpr const char* kColumnsKey = "columns";  // of the columns in a card

}  // namespace strata
