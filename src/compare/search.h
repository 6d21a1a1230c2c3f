// The search of a comparison: the learning rate of every attention, by validation rows.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "compare/compare.h"

namespace strata {

// The rates of --search-rates, ascending. Throws a usage error unless there are at least two different ones.
std::vector<double> parse_rates(const std::vector<std::string>& words);

// What the search found for an attention.
struct RateChoice {
  std::string attention;
  std::map<double, double> scores;  // rate to score on the validation rows; NaN where the run diverged
  double rate = 0;                  // of the best score
  bool at_edge = false;             // it is still the lowest or the highest that was tried
};

// Tries variants with their learning rates, and returns their scores.
using TryVariants = std::function<std::vector<double>(const std::vector<Variant>&)>;

// Tries every rate for every attention that has none of its own. While the best one of an attention is its lowest or
// its highest, the next one beyond it is tried as well, three times at most. Of equal scores the lower rate is taken.
// Sets the rates of the variants. Throws when all runs of an attention diverged.
std::vector<RateChoice> search_rates(std::vector<Variant>& variants, const std::vector<double>& rates,
                                     bool lower_is_better, const TryVariants& try_variants);

// The part of results.json, and one line per attention for people.
Json to_json(const std::vector<RateChoice>& choices);
std::vector<std::string> search_lines(const Json& results);

}  // namespace strata
