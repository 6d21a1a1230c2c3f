#include "util/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "util/error.h"

namespace strata {

void prepare_streams() {
  // Opened the wrong way round: reading from it, or writing to it, fails as it does with a closed stream.
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    if (open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) != stream) _exit(1);
  }
  std::signal(SIGPIPE, SIG_IGN);
}

void flush_output(int reason) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  if (errno != 0) reason = errno;
  if (reason == EPIPE) throw Error(ExitCode::kClosedPipe, "standard output: its reader closed the pipe");
  throw output_error("standard output: could not write ({})",
                     reason != 0 ? std::strerror(reason) : "an earlier write failed");
}

}  // namespace strata
