// The theory on a trained model and real inputs: what `strata inspect` computes (docs/theory/README.md has the schema).
#pragma once

#include <string>

#include "util/options.h"

namespace strata {

struct InspectRequest {
  std::string model;           // a run's folder, or a model file
  std::string split = "test";  // rows are taken from its beginning
  Json data = Json::object();  // data options that differ from the run's
  int64_t samples = 64;
  bool quiet = false;
};
Json inspect(const InspectRequest& request);

}  // namespace strata
