// Several processes that train one model: every one has all weights and a part of the rows of each batch.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "train/adamw.h"
#include "train/distributed.h"
#include "train/gradient_buckets.h"
#include "train/run_state.h"

namespace strata {

class DataParallel {
 public:
  // shard: every process keeps AdamW's moments of some parameters only, and sends their new weights to the others.
  DataParallel(Group& group, AdamW& optimizer, bool shard);

  Group& group() const { return group_; }
  bool is_writer() const { return group_.is_writer(); }

  // Of this process, or of all of them: sums over the rows of a step.
  struct Sums {
    torch::Tensor loss, correct;  // double
    bool stop = false;            // this process, or any, was interrupted
    bool save = false;            // the writer, for it has the clock, wants a checkpoint after this step
  };
  // Before the last backward of a step.
  void begin(const Sums& own);
  // After it: the gradients of all parameters are those of all processes. look: read the flags, which waits for the
  // device.
  Sums finish(bool look);
  // After the step of AdamW.
  void share_weights();

  // ---- checkpoints. The writer alone reads and writes them.
  // The writer has all moments until release_moments().
  void collect_moments();
  void release_moments();
  // What the writer has loaded, weights, moments and state, on all processes. False: it has loaded nothing.
  bool share_state(bool loaded, RunState& state);

  // "AdamW's moments: 0.41 of 0.82 MB per process"
  std::string describe_memory() const;

 private:
  bool is_foreign(size_t slot) const { return sharded_ && owners_[slot] != group_.rank(); }

  Group& group_;
  AdamW& optimizer_;
  const bool sharded_;
  std::vector<int64_t> owners_;  // of the slots of AdamW
  GradientBuckets buckets_;
};

}  // namespace strata
