#include "torch/device_graph.h"

#ifdef STRATA_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace strata {

#ifdef STRATA_CUDA

namespace {

// The streams that torch gives out come round again, so one is kept per device.
c10::cuda::CUDAStream side_stream(c10::DeviceIndex device) {
  thread_local std::map<c10::DeviceIndex, c10::cuda::CUDAStream> streams;
  const auto found = streams.find(device);
  if (found != streams.end()) return found->second;
  return streams.emplace(device, c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device)).first->second;
}

void wait(const c10::cuda::CUDAStream& later, const c10::cuda::CUDAStream& earlier) {
  at::cuda::CUDAEvent event;
  event.record(earlier);
  event.block(later);
}

}  // namespace

struct SideStream::State {
  explicit State(c10::DeviceIndex device)
      : before(c10::cuda::getCurrentCUDAStream(device)), own(side_stream(before.device_index())), guard(own) {
    wait(own, before);
  }
  ~State() { wait(before, own); }
  c10::cuda::CUDAStream before, own;
  c10::cuda::CUDAStreamGuard guard;
};

SideStream::SideStream(torch::Device device) {
  if (device.is_cuda()) state_ = std::make_unique<State>(device.index());
}

struct DeviceGraph::State {
  at::cuda::CUDAGraph graph;
};

bool can_record() { return true; }

DeviceGraph::DeviceGraph(const std::function<void()>& work, const DeviceGraph* beside)
    : state_(std::make_unique<State>()) {
  const at::cuda::MempoolId_t memory = beside != nullptr ? beside->state_->graph.pool() : at::cuda::MempoolId_t{0, 0};
  // Other threads may go on with what a recording thread must not do, such as asking for memory.
  state_->graph.capture_begin(memory, cudaStreamCaptureModeThreadLocal);
  try {
    work();
  } catch (...) {
    try {
      state_->graph.capture_end();
    } catch (const c10::Error&) {  // the first error says more
    }
    throw;
  }
  state_->graph.capture_end();
}

void DeviceGraph::replay() { state_->graph.replay(); }

#else

struct SideStream::State {};
SideStream::SideStream(torch::Device) {}

struct DeviceGraph::State {};
bool can_record() { return false; }
DeviceGraph::DeviceGraph(const std::function<void()>&, const DeviceGraph*) {
  TORCH_CHECK(false,
              "this build of strata has no CUDA kernels, so it cannot record graphs; build it with "
              "-DSTRATA_CUDA=ON");
}
void DeviceGraph::replay() {}

#endif

SideStream::~SideStream() = default;
DeviceGraph::~DeviceGraph() = default;

}  // namespace strata
