// `strata train --processes N`: N processes of this program on this machine, as torchrun would start them. This header
// does not include torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace strata {

// Starts this program, with `arguments` or those of this process, `count` times, with the variables of torchrun, and
// hosts their store. Passes interrupts on. Returns when all have ended well; otherwise throws an Error with the exit
// code of the first that failed, and a message unless one of them has told it.
void launch_processes(int64_t count, std::vector<std::string> arguments = {});
bool is_launched();  // whether this process was started so

}  // namespace strata
