// What a classifier answered on the rows of a split: its confusions, its scores per class, and its worst errors.
#pragma once

#include <vector>

#include "data/dataset.h"
#include "util/options.h"

namespace strata {

struct Answer {  // to one row
  int32_t label = 0, predicted = 0;
  double probability = 0;  // of the predicted class
  double loss = 0;         // nats: minus the logarithm of the probability of the label
};

// {"classes": [{"label", "rows", "predicted", "precision", "recall", "f1"}], "confusion", "worst": [{"row", "label",
// "predicted", "probability", "loss", "text"}]}. confusion[i][j] counts the rows of class i that were taken for class
// j; with more than 64 classes it is left out. A score whose denominator is zero is null. "row" counts from 0 within
// the split, and an image has no "text" but its caption.
Json describe_answers(const std::vector<Answer>& answers, const TaskData& data, const Dataset& split);

// The classes as a table for a terminal, the lowest F1 first if there are too many to show.
std::string class_table(const Json& described);

}  // namespace strata
