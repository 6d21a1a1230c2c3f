// What a thread holds while it multiplies: the tiles of AMX, or nothing. One per work item, on the thread that runs it.
#pragma once

#ifdef STRATA_TILES
#include "cpu/pair_tiles.h"
#else
#include "cpu/simd.h"
#endif

namespace strata::STRATA_ISA {

#ifdef STRATA_TILES
using ProductScope = TileScope;
#else
struct ProductScope {};
#endif

}  // namespace strata::STRATA_ISA
