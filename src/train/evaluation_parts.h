// The parts of an evaluation of a language model: the places of the context, or, where only the ends of rows are
// targets, the labels of the rows.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "data/loader.h"

namespace strata {

struct EvaluationPart {
  std::string name;  // "64-127": places counted from 0, or what the label says
  double loss = 0, accuracy = 0;
  int64_t targets = 0;
};

class EvaluationParts {
 public:
  // labels: the names of the labels, for rows of which only the end counts.
  EvaluationParts(const Dataset& data, const std::vector<std::string>& labels, int64_t batches);

  void add(int64_t index, const torch::Tensor& outputs, const Batch& batch);  // batch `index`
  torch::Tensor& sums() { return sums_; }      // (batches, parts, 3), to be summed over processes
  std::vector<EvaluationPart> result() const;  // parts without targets are left out

 private:
  const bool by_row_;
  std::vector<std::string> names_;
  torch::Tensor sums_;  // loss, correct, targets
};

}  // namespace strata
