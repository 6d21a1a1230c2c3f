// The tables of a comparison, made from results.json. The cells are written once, and printed as text, Markdown or CSV.
#pragma once

#include <string>
#include <vector>

#include "util/options.h"

namespace strata {

struct Table {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};

Table attention_table(const Json& results);  // one row per attention: score, validation, parameters, costs
Table pair_table(const Json& results);       // one row per pair: difference, interval, test
Table seed_table(const Json& results);       // one row per attention and seed, numbers in full

std::string to_text(const Json& results);      // the attentions, for a terminal
std::string to_markdown(const Json& results);  // the attentions, and the pairs
std::string to_csv(const Json& results);       // the seeds

std::string p_text(const Json& p);  // "0.0133", "< 0.0001", or "-" without a test

}  // namespace strata
