// One step of training: the mean gradient of some batches, clipped, and AdamW.
#pragma once

#include <map>
#include <memory>

#include "torch/device_graph.h"
#include "train/adamw.h"
#include "train/evaluate.h"

namespace strata {

struct StepOptions {
  double clip = 1.0;  // largest norm of the gradient; 0: no limit
  double label_smoothing = 0.0;
  bool bf16 = false;    // autocast of matrix products
  bool graphs = false;  // record steps on a GPU
};

// On a GPU, a step launches a few hundred small kernels, which takes longer than to run them. So the step of a shape
// that comes back is recorded as a CUDA graph and replayed. A replayed step computes the same bits as one that is not:
// its random numbers come from `seed`, and its learning rate from memory. Steps with trees are not recorded, because
// the host reads the trees.
class TrainStep {
 public:
  TrainStep(SequenceModel model, AdamW& optimizer, StepOptions options);

  // Losses of the batches, without gradients. A later step may overwrite them.
  std::vector<Loss> operator()(const std::vector<Batch>& batches, double learning_rate, uint64_t seed);

  int64_t replays() const { return replays_; }

 private:
  struct Placed {  // a batch on the device
    ModelInput input;
    torch::Tensor targets;
  };
  struct Recorded {
    int64_t seen = 0;
    std::vector<Placed> batches;
    std::vector<Loss> losses;
    std::unique_ptr<DeviceGraph> graph;
  };
  using Shape = std::vector<int64_t>;  // rows, width and targets of each batch

  Placed place(const Batch& batch) const;
  std::vector<Loss> compute(const std::vector<Placed>& batches);
  bool may_record(const std::vector<Batch>& batches, const Shape& shape) const;
  void record(Recorded& recorded, const std::vector<Batch>& batches);
  std::vector<Loss> replay(Recorded& recorded, const std::vector<Batch>& batches, double learning_rate, bool is_first);

  SequenceModel model_;
  AdamW& optimizer_;
  const StepOptions options_;
  const torch::Device device_;
  std::map<Shape, Recorded> recorded_;
  int64_t replays_ = 0;
};

}  // namespace strata
