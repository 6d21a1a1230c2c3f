#include "train/distributed.h"

#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

#include "torch/compat_c10d.h"
#include "train/peer_watch.h"
#include "util/text.h"

namespace strata {

using torch::Tensor;
using Clock = std::chrono::steady_clock;

namespace {

constexpr Milliseconds kPoll(20);
constexpr Milliseconds kSlack(1000);  // what waits for `timeout` itself ends before this has passed as well

std::string first_line(const std::exception& error) {
  const std::string words = error.what();
  return words.substr(0, words.find('\n'));
}

// "node3, process 1234"
std::string who() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return fmt::format("{}, process {}", host, getpid());
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0;
}

c10::intrusive_ptr<c10d::Store> meet(const Placement& place, const StoreAddress& address, Milliseconds timeout) {
  const bool serve = place.is_writer() && !place.hosted;
  try {
    const auto store = ask(timeout + kSlack, [=] { return open_store(address, serve, timeout); });
    return c10::make_intrusive<c10d::PrefixStore>(address.prefix, store);
  } catch (const std::exception& error) {
    const std::string words = error.what();
    if (serve && (words.find("failed to listen") != std::string::npos || words.find("EADDRINUSE") != std::string::npos))
      throw usage_error("MASTER_PORT: port {} is in use on this machine, the machine of rank 0; choose another one",
                        place.port);
    throw usage_error(
        "MASTER_ADDR: could not reach rank 0 at {}:{} within {} seconds; check that it was started, and that no "
        "firewall stands between ({})",
        place.address, place.port, timeout.count() / 1000, shown(first_line(error), 200));
  }
}

#ifdef USE_C10D_GLOO
c10::intrusive_ptr<CollectiveBackend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, const Placement& place,
                                                Milliseconds timeout) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create(timeout);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  options->devices.push_back(interface != nullptr         ? Gloo::createDeviceForInterface(interface)
                             : is_loopback(place.address) ? Gloo::createDeviceForHostname("127.0.0.1")
                                                          : Gloo::createDefaultDevice());
  return c10::make_intrusive<Gloo>(store, static_cast<int>(place.rank), static_cast<int>(place.size), options);
}
#endif

c10::intrusive_ptr<CollectiveBackend> make_backend([[maybe_unused]] const c10::intrusive_ptr<c10d::Store>& store,
                                                   [[maybe_unused]] const Placement& place, torch::DeviceType device,
                                                   [[maybe_unused]] Milliseconds timeout) {
  if (device == torch::kCUDA) {
#ifdef USE_C10D_NCCL
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = timeout;
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, static_cast<int>(place.rank),
                                                       static_cast<int>(place.size), options);
#else
    throw usage_error(
        "--device: several processes on CUDA need NCCL, and this build has none; use --device cpu, or build with "
        "-DSTRATA_CUDA=ON against a PyTorch with NCCL");
#endif
  }
#ifdef USE_C10D_GLOO
  return make_gloo(store, place, timeout);
#else
  throw usage_error(
      "several processes on the CPU need Gloo, and this build has none; build it with libgloo-dev, or start one "
      "process");
#endif
}

}  // namespace

struct Group::State {
  StoreAddress address;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<CollectiveBackend> backend;
  std::unique_ptr<PeerWatch> watch;
  int64_t texts = 0;  // told so far
  bool store_is_lost = false;
  Milliseconds timeout;
};

// Runs what talks to others. What it throws becomes an error that names the rank.
template <class Work>
auto Group::guarded(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw lost(first_line(error));
  }
}

Group::Group(const Placement& place, torch::DeviceType device, double timeout)
    : place_(place), timeout_(timeout), state_(std::make_unique<State>()) {
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", 0);
  state_->timeout = Milliseconds(static_cast<int64_t>(1000 * timeout));
  state_->address = {place.address, place.port, fmt::format("strata/{}", place.restarts)};
  state_->store = meet(place, state_->address, state_->timeout);
  try {
    connect(device);
  } catch (const Error& error) {
    const Error told = stop(error);
    (void)state_.release();
    throw told;
  }
}

void Group::connect(torch::DeviceType device) {
  guarded([&] {
    state_->watch = std::make_unique<PeerWatch>(state_->address, rank(), who());
    put(fmt::format("joined/{}", rank()), "yes");
    for (int64_t r = 0; r < size(); ++r) wait_for(fmt::format("joined/{}", r));
    state_->backend =
        ask(state_->timeout + kSlack, [store = state_->store, place = place_, device, timeout = state_->timeout] {
          return make_backend(store, place, device, timeout);
        });
  });
}

// After a failure the connections are left to the end of the process: closing them waits for what never comes.
Group::~Group() { (void)state_.release(); }

Error Group::lost(const std::string& reason) {
  const std::string text =
      explain_loss(state_->address, rank(), size(), fmt::format("the processes lost each other ({})", reason));
  state_->store_is_lost = text.empty();
  if (!text.empty()) return {ExitCode::kFailure, text};
  const std::string host = place_.hosted ? "the starter of the processes" : "rank 0";
  return {ExitCode::kFailure,
          fmt::format("{}, which hosts the store at {}:{}, does not answer: it was killed, hangs or lost its network",
                      host, place_.address, place_.port)};
}

void Group::put(const std::string& key, const std::string& text) {
  ask(state_->timeout, [store = state_->store, key, text] { put_text(*store, key, text); });
}

void Group::wait_for(const std::string& key) {
  const auto end = Clock::now() + state_->timeout;
  const std::string failure = ask(state_->timeout + kSlack, [store = state_->store, key, end]() -> std::string {
    for (; !store->check({key}); std::this_thread::sleep_for(kPoll)) {
      const std::string said = peek_text(*store, kFailureKey);
      if (!said.empty()) return said;
      if (Clock::now() > end) throw std::runtime_error(fmt::format("nothing came under the key {} in time", key));
    }
    return "";
  });
  if (!failure.empty()) throw Error(ExitCode::kFailure, failure);
}

std::string Group::take(const std::string& key) {
  wait_for(key);
  return ask(state_->timeout, [store = state_->store, key] { return get_text(*store, key); });
}

std::string Group::tell(const std::string& text) {
  const std::string key = fmt::format("text/{}", state_->texts++);
  return guarded([&] {
    if (!is_writer()) return take(key);
    put(key, text);
    return text;
  });
}

std::string difference_of(const Json& facts, const Json& others, int64_t rank) {
  for (const auto& [topic, own] : facts.items()) {
    const Json other = others.value(topic, Json::object());
    if (own == other) continue;
    const Json mine = own.flatten(), theirs = other.flatten();
    for (const auto& [key, value] : mine.items()) {
      const Json there = theirs.value(key, Json());
      if (there != value)
        return fmt::format("the ranks disagree about {}: {} is {} on rank 0 and {} on rank {}", topic, key.substr(1),
                           shown(value.dump(), 100), shown(there.dump(), 100), rank);
    }
    return fmt::format("the ranks disagree about {}: rank {} has more of it than rank 0", topic, rank);
  }
  return "";
}

void Group::compare(const Json& facts) {
  std::string difference;
  guarded([&] {
    put(fmt::format("facts/{}", rank()), facts.dump());
    for (int64_t r = 1; is_writer() && r < size() && difference.empty(); ++r)
      difference = difference_of(facts, Json::parse(take(fmt::format("facts/{}", r))), r);
  });
  difference = tell(difference);
  if (!difference.empty()) throw usage_error("{}; start all with the same command, data and version", difference);
}

Group::Wait Group::sum_later(const Tensor& tensor) {
  return guarded([&]() -> Wait {
    state_->watch->count_collective();
    std::vector<Tensor> tensors = {tensor};
    return [this, work = state_->backend->allreduce(tensors)] { guarded([&] { work->wait(); }); };
  });
}

void Group::broadcast(const Tensor& tensor, int64_t from) {
  guarded([&] {
    state_->watch->count_collective();
    std::vector<Tensor> tensors = {tensor};
    c10d::BroadcastOptions options;
    options.rootRank = from;
    state_->backend->broadcast(tensors, options)->wait();
  });
}

void Group::send(const Tensor& tensor, int64_t to) {
  guarded([&] {
    std::vector<Tensor> tensors = {tensor};
    state_->backend->send(tensors, static_cast<int>(to), 0)->wait();
  });
}

void Group::receive(const Tensor& tensor, int64_t from) {
  guarded([&] {
    std::vector<Tensor> tensors = {tensor};
    state_->backend->recv(tensors, static_cast<int>(from), 0)->wait();
  });
}

// Rank 0 stays until all have left, where the store is its own.
void Group::leave() {
  guarded([&] {
    const bool serves = is_writer() && !place_.hosted;
    const auto end = Clock::now() + state_->timeout;
    ask(state_->timeout + kSlack, [store = state_->store, serves, size = size(), end] {
      for (const char* round : {"left", "gone"}) {
        store->add(round, 1);
        const bool waits = serves || std::string(round) == "left";
        for (; waits && store->add(round, 0) < size; std::this_thread::sleep_for(kPoll))
          if (Clock::now() > end) throw std::runtime_error("not all ranks came to the end");
      }
    });
  });
  state_.reset(nullptr);
}

Error Group::stop(const Error& error) noexcept {
  const std::string message = error.what();
  // After an interrupt all stop together, and rank 0 says so.
  if (error.code() == ExitCode::kInterrupted) return {error.code(), is_writer() ? message : ""};
  if (state_ == nullptr || state_->store_is_lost) return error;
  try {
    const bool about_others = message.rfind("rank ", 0) == 0 || message.rfind("the ranks ", 0) == 0;
    const std::string text = about_others || size() == 1 ? message : fmt::format("rank {}: {}", rank(), message);
    const bool is_first = ask(kExplainTime, [store = state_->store, text] { return say_failure(*store, text); });
    return {error.code(), is_first ? text : ""};
  } catch (const std::exception&) {
    return error;  // the store is gone
  }
}

}  // namespace strata
