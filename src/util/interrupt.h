// Ctrl-C, SIGTERM and SIGHUP: the first one asks a run to save and stop, the second one stops it at once.
#pragma once

namespace strata {

void watch_for_interrupts();
bool interrupted();

}  // namespace strata
