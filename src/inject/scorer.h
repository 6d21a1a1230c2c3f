// The score and the cost of a host with any of its layers injected, on the test rows of an experiment.
#pragma once

#include <string>
#include <vector>

#include "inject/experiment_data.h"
#include "inject/linear_head.h"
#include "inject/selection.h"

namespace strata {

// How far an experiment is, in texts read. Throws Error when the user interrupts.
class ExperimentProgress {
 public:
  ExperimentProgress(Progress& progress, double work) : progress_(progress), work_(work) {}
  void show(double done, const std::string& what);  // of the present part
  void finish_part(double texts) { done_ += texts; }

 private:
  Progress& progress_;
  const Clock clock_{0};
  double work_ = 1, done_ = 0;
};

class Scorer {
 public:
  // Fits a linear head on the training rows, if there are any; otherwise the model's own head answers. A causal model
  // is scored by the loss of its next tokens. Throws data errors.
  Scorer(Host& host, const InjectOptions& options, const ExperimentData& data, ExperimentProgress& progress);

  // {"layers", "score", "agreement", "attention_share", "flops", "injected_share"}: accuracy, or nats per token; share
  // of the rows with the same answer as the original model; attention over flat attention, over all layers;
  // floating-point operations of all attention, per text; attention over flat attention, over the injected layers. The
  // first selection must be the empty one.
  Json score(const InjectionSelection& selection, const std::string& what);
  bool has_own_head() const { return options_.train.empty(); }

 private:
  torch::Tensor outputs_of(const std::vector<HostText>& texts, const InjectionSelection& selection,
                           const std::string& what, const std::shared_ptr<std::vector<AttentionCost>>& costs, bool own);
  torch::Tensor numbers(const std::vector<std::string>& labels, const std::string& file) const;
  void fit_head();
  Json costs_of(const InjectionSelection& selection, const std::vector<AttentionCost>& costs) const;

  Host& host_;
  const InjectOptions& options_;
  const ExperimentData& data_;
  ExperimentProgress& progress_;
  std::vector<std::string> classes_;
  torch::Tensor targets_, original_;  // labels, and the answers of the original model
  LinearHead head_;
};

}  // namespace strata
