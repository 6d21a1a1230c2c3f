// The layers of a host that attend by HSA, and their trees. Both can be chosen by the KL gap, without labels.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "inject/inject.h"
#include "inject/tree_recipe.h"

namespace strata {

struct LayerSelection {
  int64_t layer = 0;
  std::vector<TreeRecipe>
      trees;  // several: every text uses the one closest to softmax. Causal models: one, for its branching
};

struct InjectionSelection {
  std::vector<LayerSelection> layers;
  bool exact_special = true;  // special tokens attend to all tokens

  AttentionFunction attention(const Host& host, const std::vector<HostText>& texts,
                              std::shared_ptr<std::vector<AttentionCost>> costs = nullptr) const;
};

// "none", "late" (every second layer of the later half, from the last one back), or numbers from 0. Throws a usage
// error for a layer that the model does not have.
std::vector<int64_t> parse_layers(const std::string& text, int64_t layers);
// All layers in the order of the paper: the last, every second one before it, then the others. "late" is its beginning.
std::vector<int64_t> late_order(int64_t layers);

// KL(HSA || softmax) of every layer and recipe, in nats per token, and the cost of every recipe relative to flat
// attention, measured on texts without labels.
struct GapTable {
  std::vector<TreeRecipe> recipes;
  std::vector<std::vector<double>> gaps;  // [layer][recipe]
  std::vector<double> costs;              // [recipe]

  // The recipe with the smallest gap among those that cost at most `budget` of flat attention; the cheapest recipe if
  // all cost more.
  size_t best_recipe(int64_t layer, double budget) const;
  // The best recipe and as many others, by their gaps, as can be scored for every text within the budget.
  std::vector<TreeRecipe> candidates(int64_t layer, double budget) const;
};
GapTable measure_gaps(Host& host, const std::vector<HostText>& texts, const std::vector<TreeRecipe>& recipes,
                      bool exact_special, int64_t batch, const std::function<void(int64_t texts_done)>& progress = {});

// The layers with their recipes that have the smallest sum of gaps, among all choices that save at least `cut` of the
// attention of all layers and in which no replaced layer costs more than `budget` of flat attention. Throws a usage
// error when no choice saves that much.
inline constexpr int64_t kCutSteps = 2000;  // costs of a layer are rounded up to 1/2000
std::vector<LayerSelection> choose_layers(const GapTable& table, double cut, double budget);

}  // namespace strata
