// Trained models in use, for callers that do not include torch.
#pragma once

#include <memory>
#include <string>

#include "data/config.h"

namespace strata {

struct EvaluateRequest {
  std::string model;  // a run's folder, or a model file
  std::string split;  // "train", "valid", "test" or "all"; empty: all of other data, the test rows of the run's
  Json data = Json::object();  // data options that differ from the run's
  int64_t batch = 128, threads = 0;
  bool allow_changed_data = false, check_digest = true;
};
void declare(OptionTable& table, EvaluateRequest& request);  // all but the model and the data
// {"model", "task", "split", "loss", "accuracy", "rows", "seconds", "record"}; a classifier also has what
// describe_answers() says (train/answers.h), a language model "bits_per_byte".
Json evaluate_model(const EvaluateRequest& request);

// Answers inputs one by one: {"input", "label", "probability", "probabilities"}, or, from a language model, {"input",
// "bits_per_byte", "next"}. Throws a data error for an input that the model cannot read.
class Predictor {
 public:
  Predictor(const std::string& model, int64_t top, bool check_digest);  // top: number of next bytes
  ~Predictor();
  Json operator()(const std::string& input) const;
  const std::string& task() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// An input as answers repeat it. A long one is cut.
std::string shown_input(const std::string& input);

}  // namespace strata
