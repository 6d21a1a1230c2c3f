// STRATA_API marks what the shared libraries export. Everything else is hidden, above all the parts of the C++ standard
// library that some compilers link into every library: two such copies in one process crash if they share symbols.
#pragma once

#define STRATA_API __attribute__((visibility("default")))
