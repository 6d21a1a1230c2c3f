// Which layers of a host attend by HSA, on which trees; and the choice of both by the KL gap, without labels.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "inject/inject.h"
#include "inject/tree_recipe.h"

namespace strata {

struct LayerPlan {
  int64_t layer = 0;
  std::vector<TreeRecipe> trees;  // several: every text takes the one closest to softmax. Causal models: one, for its b
};

struct InjectionPlan {
  std::vector<LayerPlan> layers;
  bool exact_special = true;  // special tokens go on attending to all tokens

  AttentionFunction attention(const Host& host, const std::vector<HostText>& texts,
                              std::shared_ptr<std::vector<AttentionCost>> costs = nullptr) const;
};

// "none", "late" (every second layer from the last one back to the middle), or numbers from 0. Throws a usage error for
// what a model has not.
std::vector<int64_t> parse_layers(const std::string& text, int64_t layers);
// All layers in the order in which the paper would take them: the last, every second one before it, then the others.
std::vector<int64_t> late_order(int64_t layers);
// Of every layer and recipe, KL(HSA || softmax) in nats per token, and of every recipe what it costs over flat
// attention, over texts that need no labels.
struct GapTable {
  std::vector<TreeRecipe> recipes;
  std::vector<std::vector<double>> gaps;  // [layer][recipe]
  std::vector<double> costs;              // [recipe]

  // The layer's recipe of the smallest gap among those that cost at most `budget` of flat attention; the cheapest one
  // if there is none.
  size_t best_recipe(int64_t layer, double budget) const;
  // The best recipe and, by their gaps, as many others as can be scored for every text within the budget.
  std::vector<TreeRecipe> candidates(int64_t layer, double budget) const;
};
GapTable measure_gaps(Host& host, const std::vector<HostText>& texts, const std::vector<TreeRecipe>& recipes,
                      bool exact_special, int64_t batch, const std::function<void(int64_t texts_done)>& progress = {});

// The layers, and for each the recipe, that lose least: the smallest sum of gaps of all choices that save at least
// `cut` of the attention of all layers, where no replaced layer costs more than `budget` of flat attention. Throws a
// usage error when no choice saves as much.
inline constexpr int64_t kCutSteps = 2000;  // costs of a layer are rounded up to 1/2000
std::vector<LayerPlan> choose_layers(const GapTable& table, double cut, double budget);

}  // namespace strata
