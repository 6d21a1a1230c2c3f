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

// Of every file as many rows as the options ask for, chosen by the seed. Rows that cannot be read are counted and left
// out. Without --texts, the unlabelled ones are those of the training rows, or else of the test rows; nobody looks at
// their labels. Throws data and usage errors.
ExperimentData read_experiment_data(const Host& host, const InjectOptions& options, Progress& progress);

}  // namespace strata
