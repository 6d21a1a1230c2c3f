#include "util/interrupt.h"

#include <csignal>

namespace strata {
namespace {

volatile std::sig_atomic_t asked = 0;

void on_signal(int signal) {
  asked = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

void watch_for_interrupts() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  // The terminal has gone. Under nohup the signal is ignored, and stays so.
  if (std::signal(SIGHUP, on_signal) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);
}

bool interrupted() { return asked != 0; }

}  // namespace strata
