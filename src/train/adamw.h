// AdamW (Loshchilov and Hutter 2019) over lists of tensors. A step is a few operators in all, not a few per parameter,
// which would take longer to launch on a GPU than to run.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

namespace strata {

class AdamW {
 public:
  // Matrices decay; biases, norms and level weights do not.
  AdamW(const torch::nn::Module& model, double weight_decay);

  void zero_grad();
  // Scales all gradients so that their norm over all parameters is at most this. Does not wait for the device.
  void clip(double largest_norm);
  // theta -= lr decay theta;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
  // theta -= lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)
  // for all parameters that have a gradient.
  void step(double learning_rate);

  // A step in two parts, so that the second can be recorded and replayed on a GPU: there the learning rate and the
  // numbers of steps lie in its memory. The first steps must not be recorded, because they make the moments.
  void set_learning_rate(double learning_rate);
  void update();
  // Counts the step of a replayed update().
  void replayed();

  // The state of a parameter in a checkpoint. It has no moments before its first step.
  struct Slot {
    std::string name;
    torch::Tensor parameter;
    double decay = 0;
    int64_t steps = 0;
    torch::Tensor mean, square;
    torch::Tensor steps_on_device;  // on a GPU
    bool foreign = false;           // another process has its moments and takes its steps (train/data_parallel.h)
  };
  std::vector<Slot>& slots() { return slots_; }

 private:
  struct Group {  // of slots with the same decay and number of steps
    std::vector<torch::Tensor> parameters, gradients, means, squares, steps_on_device;
  };
  void update_on_cpu(double decay, int64_t steps, Group& group) const;

  std::vector<Slot> slots_;
  double learning_rate_ = 0;
  torch::Tensor rate_on_device_;  // on a GPU
};

}  // namespace strata
