// Loss and accuracy over the steps since the last line of metrics.jsonl.
#pragma once

#include "train/evaluate.h"
#include "train/run_state.h"

namespace strata {

// The sums stay on the device: no step waits for it.
class Window {
 public:
  explicit Window(torch::Device device);

  void add(const Loss& loss, int64_t tokens);
  void restart(double train_seconds);

  bool empty() const { return counted_ == 0; }
  double loss() const;  // this and accuracy() wait for the device
  double accuracy() const;
  double tokens_per_second(double train_seconds) const;

  RunState::Sums save() const;  // for a checkpoint
  void restore(const RunState::Sums& saved);

 private:
  double mean(const torch::Tensor& sum) const;

  torch::Tensor loss_, correct_;
  int64_t counted_ = 0, tokens_ = 0;
  double start_seconds_ = 0;
};

}  // namespace strata
