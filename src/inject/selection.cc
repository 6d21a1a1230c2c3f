#include "inject/selection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "strata/hsa_stream.h"
#include "torch/hsa_op.h"
#include "util/error.h"

namespace strata {

using torch::Tensor;

AttentionFunction InjectionSelection::attention(const Host& host, const std::vector<HostText>& texts,
                                                std::shared_ptr<std::vector<AttentionCost>> costs) const {
  Injection injection;
  injection.costs = std::move(costs);
  std::map<std::string, std::vector<Tensor>> made;  // layers share trees
  for (const LayerSelection& plan : layers) {
    if (host.is_causal()) {
      injection.streams[plan.layer] = plan.trees.front().branching;
      continue;
    }
    auto& candidates = injection.trees[plan.layer];
    for (const TreeRecipe& recipe : plan.trees) {
      std::vector<Tensor>& trees = made[recipe.name()];
      for (size_t i = trees.size(); i < texts.size(); ++i) trees.push_back(encode_tree(recipe.make(host, texts[i])));
      candidates.push_back(trees);
    }
  }
  if (exact_special && !host.is_causal()) {
    for (const HostText& text : texts) injection.exact.push_back(text.special);
  }
  return inject_hsa(softmax_attention(host.is_causal()), std::move(injection), host.is_causal());
}

std::vector<int64_t> parse_layers(const std::string& text, int64_t layers) {
  if (text == "none") return {};
  if (text == "late") {
    std::vector<int64_t> chosen = late_order(layers);
    chosen.resize((layers - layers / 2 + 1) / 2);  // those of the later half
    std::sort(chosen.begin(), chosen.end());
    return chosen;
  }
  std::set<int64_t> chosen;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, end - at);
    const bool digits = !word.empty() && word.size() < 6 && word.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoll(word) >= layers)
      throw usage_error("--layers: expected none, late, auto, or numbers from 0 to {} separated by commas, got \"{}\"",
                        layers - 1, text);
    chosen.insert(std::stoll(word));
    at = end + 1;
  }
  return {chosen.begin(), chosen.end()};
}

std::vector<int64_t> late_order(int64_t layers) {
  std::vector<int64_t> order;
  for (const int64_t first : {layers - 1, layers - 2}) {
    for (int64_t layer = first; layer >= 0; layer -= 2) order.push_back(layer);
  }
  return order;
}

size_t GapTable::best_recipe(int64_t layer, double budget) const {
  size_t best = recipes.size(), cheapest = 0;
  for (size_t r = 0; r < recipes.size(); ++r) {
    if (costs[r] < costs[cheapest]) cheapest = r;
    if (costs[r] <= budget && (best == recipes.size() || gaps[layer][r] < gaps[layer][best])) best = r;
  }
  return best == recipes.size() ? cheapest : best;
}

std::vector<TreeRecipe> GapTable::candidates(int64_t layer, double budget) const {
  std::vector<size_t> order(recipes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return gaps[layer][a] < gaps[layer][b]; });
  std::vector<TreeRecipe> chosen = {recipes[best_recipe(layer, budget)]};
  double scored = costs[best_recipe(layer, budget)], largest = scored;
  for (const size_t r : order) {
    // Scores of all candidates are half of the work of attending on them; one of them does the other half, too.
    const double spent = (scored + costs[r]) / 2 + std::max(largest, costs[r]);
    if (recipes[r].name() == chosen[0].name() || spent > budget) continue;
    chosen.push_back(recipes[r]);
    scored += costs[r];
    largest = std::max(largest, costs[r]);
  }
  return chosen;
}

GapTable measure_gaps(Host& host, const std::vector<HostText>& texts, const std::vector<TreeRecipe>& recipes,
                      bool exact_special, int64_t batch, const std::function<void(int64_t)>& progress) {
  GapTable table{recipes, std::vector(host.layers(), std::vector<double>(recipes.size(), 0)),
                 std::vector<double>(recipes.size(), 0)};
  const bool causal = host.is_causal();
  double tokens = 0, flat = 0;
  const auto count = static_cast<int64_t>(texts.size());
  for (int64_t first = 0; first < count; first += batch) {
    const std::vector<HostText> part(texts.begin() + first, texts.begin() + std::min(first + batch, count));
    std::vector<std::vector<Tensor>> trees(recipes.size());
    for (const HostText& text : part) {
      const auto length = static_cast<double>(text.tokens());
      tokens += length;
      flat += causal ? length * (length + 1) / 2 : length * length;
      for (size_t r = 0; r < recipes.size(); ++r) {
        if (causal) {
          table.costs[r] += static_cast<double>(hsa_stream_cost(text.tokens(), static_cast<int>(recipes[r].branching)));
          continue;
        }
        trees[r].push_back(encode_tree(recipes[r].make(host, text)));
        table.costs[r] += tree_cost(trees[r].back());
        if (exact_special) table.costs[r] += static_cast<double>(text.special.size()) * length;
      }
    }
    const AttentionFunction softmax = softmax_attention(causal);
    host.run(part, [&](int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths) {
      for (size_t r = 0; r < recipes.size(); ++r) {
        const Tensor gap = causal ? stream_gap(q, k, lengths, recipes[r].branching) : tree_gap(q, k, lengths, trees[r]);
        table.gaps[layer][r] += (gap * lengths).sum().item<double>();
      }
      return softmax(layer, q, k, v, lengths);
    });
    if (progress) progress(first + static_cast<int64_t>(part.size()));
  }
  for (double& cost : table.costs) cost /= flat;
  for (std::vector<double>& layer : table.gaps) {
    for (double& gap : layer) gap /= tokens;
  }
  return table;
}

// A knapsack over the layers: `least[c]` is the smallest sum of gaps at a cost of at most c steps. One step is 1/2000
// of the flat attention of a layer. Costs are rounded up, so that at least `cut` is saved.
std::vector<LayerSelection> choose_layers(const GapTable& table, double cut, double budget) {
  const auto layers = static_cast<int64_t>(table.gaps.size());
  const auto room = static_cast<int64_t>(std::floor((1 - cut) * static_cast<double>(layers * kCutSteps) + 1e-6));
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> least(room + 1, 0.0);
  std::vector<std::vector<int64_t>> choice(layers, std::vector<int64_t>(room + 1, -1));  // a recipe; -1: softmax
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<double> next(room + 1, kNever);
    auto offer = [&](int64_t recipe, double gap, int64_t cost) {
      for (int64_t c = cost; c <= room; ++c) {
        if (least[c - cost] + gap < next[c]) {
          next[c] = least[c - cost] + gap;
          choice[layer][c] = recipe;
        }
      }
    };
    offer(-1, 0, kCutSteps);
    for (size_t r = 0; r < table.recipes.size(); ++r) {
      if (table.costs[r] <= budget)
        offer(static_cast<int64_t>(r), table.gaps[layer][r],
              static_cast<int64_t>(std::ceil(table.costs[r] * kCutSteps)));
    }
    least = std::move(next);
  }
  if (room < 0 || least[room] == kNever)
    throw usage_error(
        "--cut: no choice of layers and trees saves {:.0f}% of the attention within a budget of {:.0f}%; the cheapest "
        "tree costs {:.1f}% on these texts. Raise --budget or lower --cut",
        100 * cut, 100 * budget, 100 * *std::min_element(table.costs.begin(), table.costs.end()));
  std::vector<LayerSelection> chosen;
  int64_t left = room;
  for (int64_t layer = layers - 1; layer >= 0; --layer) {
    const int64_t recipe = choice[layer][left];
    left -= recipe < 0 ? kCutSteps : static_cast<int64_t>(std::ceil(table.costs[recipe] * kCutSteps));
    if (recipe >= 0) chosen.insert(chosen.begin(), LayerSelection{layer, {table.recipes[recipe]}});
  }
  return chosen;
}

}  // namespace strata
