// The processes of one run, and what they say to each other, over c10d: texts through its TCPStore, tensors through
// Gloo (CPU) or NCCL (CUDA).
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>

#include "train/placement.h"
#include "util/error.h"
#include "util/options.h"

namespace strata {

// Every function that waits for others stops after `timeout` seconds, and at once when another rank ends: it then
// throws an Error that names the rank. A group that has thrown is of no further use.
class Group {
 public:
  // Returns when all ranks are there. Throws a usage error if this build has no collectives for the device.
  Group(const Placement& place, torch::DeviceType device, double timeout);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int64_t rank() const { return place_.rank; }
  int64_t size() const { return place_.size; }
  bool is_writer() const { return place_.is_writer(); }
  const Placement& place() const { return place_; }

  // The text of rank 0, on all ranks.
  std::string tell(const std::string& text);
  // Throws a usage error on every rank, which names the first difference, unless all ranks have the same facts: an
  // object of objects, {"options": {"batch": 32, ..}, ..}.
  void compare(const Json& facts);

  // All must call these in the same order. Tensors are dense, and lie on the device of the group.
  using Wait = std::function<void()>;
  Wait sum_later(const torch::Tensor& tensor);  // in place; the sum is there after the call of what this returns
  void sum(const torch::Tensor& tensor) { sum_later(tensor)(); }
  void broadcast(const torch::Tensor& tensor, int64_t from = 0);
  void send(const torch::Tensor& tensor, int64_t to);
  void receive(const torch::Tensor& tensor, int64_t from);

  // At the end of the run: waits for all, then closes the connections.
  void leave();
  // Tells the others why this rank stops. Returns the error to end this process with: it names the rank, and its
  // message is empty where another rank has already said the same, so that a user reads it once.
  Error stop(const Error& error) noexcept;

 private:
  struct State;
  void connect(torch::DeviceType device);
  // ---- texts of the store
  void put(const std::string& key, const std::string& text);
  std::string take(const std::string& key);  // waits for it
  void wait_for(const std::string& key);
  Error lost(const std::string& reason);
  template <class Work>
  auto guarded(const Work& work) -> decltype(work());

  const Placement place_;
  const double timeout_;
  std::unique_ptr<State> state_;
};

// The first difference between the facts of rank 0 and another rank, "" if there is none. For tests.
std::string difference_of(const Json& facts, const Json& others, int64_t rank);

}  // namespace strata
