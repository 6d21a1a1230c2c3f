// Trained models in use, for callers that know no torch.
#pragma once

#include <memory>
#include <string>

#include "data/config.h"

namespace strata {

struct EvaluateRequest {
  std::string model;           // a run's folder, or a model file
  std::string split = "test";  // or "train", "valid"
  Json data = Json::object();  // data options that differ from the run's
  int64_t batch = 128;
};
// {"model", "split", "loss", "accuracy", "rows", "seconds", "record"}, and "bits_per_byte" of a language model.
Json evaluate_model(const EvaluateRequest& request);

// Answers inputs one by one: {"input", "label", "probability", "probabilities"}, or of a language model {"input",
// "bits_per_byte", "next"}. Throws a data error for an input the model cannot read.
class Predictor {
 public:
  Predictor(const std::string& model, int64_t top);  // top: how many next bytes
  ~Predictor();
  Json operator()(const std::string& input) const;
  const std::string& task() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// An input as answers repeat it: cut when it is long.
std::string shown_input(const std::string& input);

}  // namespace strata
