// A process that this one starts, between fork and exec.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace strata {

inline void settle_child() {
  setpgid(0, 0);                     // Ctrl-C reaches only the parent, which passes it on once
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // if the parent is killed, the child saves and stops
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
}

}  // namespace strata
