#pragma once

#include "bench/report.h"

namespace strata::bench {

// A part of hsa_figures().
std::vector<Figure> hsa_bf16_figures(const Arguments& arguments);

}  // namespace strata::bench
