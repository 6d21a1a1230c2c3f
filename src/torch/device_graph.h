// CUDA graphs: work on a GPU, recorded once and then repeated by one launch.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>

#include "strata/export.h"

namespace strata {

// A stream of its own for the lifetime of this object, as recording needs it. What was queued before comes before, and
// what is queued afterwards comes after. Does nothing on the CPU.
class STRATA_API SideStream {
 public:
  explicit SideStream(torch::Device device);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Whether this build can record.
STRATA_API bool can_record();

// What `work` queues on the current stream, which must not be the default one. Recording runs nothing. Every tensor
// that `work` makes stays where it is, and holds new values after each replay. Random numbers come from torch's
// generator as it stands at the replay, as they would without a graph. `work` must not wait for the GPU.
class STRATA_API DeviceGraph {
 public:
  // beside: a graph that lives as long and never runs at the same time; the two share their memory.
  explicit DeviceGraph(const std::function<void()>& work, const DeviceGraph* beside = nullptr);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  void replay();  // on the current stream

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace strata
