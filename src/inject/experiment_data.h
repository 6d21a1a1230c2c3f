// The texts of an injection, as its host reads them.
#pragma once

#include <string>
#include <vector>

#include "inject/experiment.h"
#include "inject/host.h"

namespace strata {

struct LabelledTexts {
  std::vector<HostText> texts;
  std::vector<std::string> labels;
};

struct ExperimentData {
  LabelledTexts train, test;
  std::vector<HostText> unlabelled;  // never empty
};

// As many rows of every file as the options say, chosen by the seed. Rows that cannot be read are counted and left out.
// Without --texts, the unlabelled texts are those of the training rows, or else of the test rows; their labels are not
// used. Throws data and usage errors.
ExperimentData read_experiment_data(const Host& host, const InjectOptions& options, Progress& progress);

}  // namespace strata
