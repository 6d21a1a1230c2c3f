#pragma once

#include "bench/report.h"

namespace strata::bench {

// A part of hkt_figures().
std::vector<Figure> hkt_bf16_figures(const Arguments& arguments);

}  // namespace strata::bench
