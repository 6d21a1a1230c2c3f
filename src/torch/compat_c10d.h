// c10d, PyTorch's collectives, in the libtorch versions that strata supports. A header of its own: few files need it,
// and it takes long to compile.
#pragma once

#include <torch/version.h>
#include <unistd.h>

#include <exception>
#include <string>
#include <system_error>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#ifdef USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace strata {

// What ProcessGroupGloo and ProcessGroupNCCL are.
#if TORCH_VERSION_MAJOR >= 2
using CollectiveBackend = c10d::Backend;
#else
using CollectiveBackend = c10d::ProcessGroup;
#endif

using Milliseconds = std::chrono::milliseconds;

struct StoreAddress {
  std::string host;
  int64_t port = 0;    // 0, of a server: any free one
  std::string prefix;  // of all keys
};

// Each store of PyTorch 1.13 listens in a thread that throws where nobody catches when the connection is reset, as
// when a host that was stopped is killed: the process would abort. That thread is held instead. The next call of the
// store fails and says so.
inline void hold_reset_listeners() {
#if TORCH_VERSION_MAJOR < 2
  static const std::terminate_handler before = std::set_terminate([] {
    try {
      if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
    } catch (const std::system_error& error) {
      const std::error_code code = error.code();
      const bool lost = code == std::errc::connection_reset || code == std::errc::broken_pipe ||
                        code == std::errc::timed_out || code == std::errc::host_unreachable ||
                        code == std::errc::network_unreachable;
      while (lost && gettid() != getpid()) pause();
    } catch (...) {
    }
    before();
  });
#endif
}

// The store there, as a server or as a client. Throws what c10d throws.
inline c10::intrusive_ptr<c10d::TCPStore> open_store(const StoreAddress& address, bool serve, Milliseconds timeout) {
  hold_reset_listeners();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(address.port);
  options.isServer = serve;
  options.waitWorkers = false;
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(address.host, options);
}

}  // namespace strata
