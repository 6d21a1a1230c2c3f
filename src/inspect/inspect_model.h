// The theory on a trained model and real inputs: the result of `strata inspect` (docs/theory/README.md has the schema).
#pragma once

#include <string>

#include "util/options.h"

namespace strata {

struct InspectRequest {
  std::string model;           // a run's folder, or a model file
  std::string split = "test";  // rows are taken from its beginning
  Json data = Json::object();  // data options that differ from the run's
  int64_t samples = 64;
  int64_t examples = 3;  // the first rows, with the attention of every head on them
  int64_t threads = 0;
  bool quiet = false;
  bool allow_changed_data = false, check_digest = true;
};
void declare(OptionTable& table, InspectRequest& request);  // all but the model and the data

// Parts that cannot be computed are named under "problems", or as the "problem" of a layer, head or level.
Json inspect_model(const InspectRequest& request);

}  // namespace strata
