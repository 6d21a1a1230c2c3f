// The files of src/report/page and Chart.js, embedded by the build (src/report/embed.cmake).
#pragma once

#include <string_view>

namespace strata {

extern const std::string_view kPageHtml, kPageCss, kPageScript, kChartScript;

}  // namespace strata
