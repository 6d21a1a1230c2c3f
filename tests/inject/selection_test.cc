// Which layers attend by HSA, on which trees; linear heads.
#include "inject/selection.h"

#include <gtest/gtest.h>

#include "data/support.h"
#include "inject/linear_head.h"
#include "torch/hsa_op.h"
#include "util/error.h"

namespace strata {
namespace {

using torch::Tensor;

TEST(ParseLayers, TakesNumbersNoneAndLate) {
  EXPECT_EQ(parse_layers("none", 6), std::vector<int64_t>{});
  EXPECT_EQ(parse_layers("3,5,3", 6), (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(parse_layers("late", 6), (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(parse_layers("late", 12), (std::vector<int64_t>{7, 9, 11}));
  EXPECT_EQ(parse_layers("late", 1), (std::vector<int64_t>{0}));
  for (const char* bad : {"", "6", "-1", "1,,2", "x", "1 2"}) EXPECT_THROW(parse_layers(bad, 6), Error) << bad;
  EXPECT_EQ(late_order(6), (std::vector<int64_t>{5, 3, 1, 4, 2, 0}));
}

// A host that is only asked for trees.
class NoModel : public Host {
 public:
  int64_t layers() const override { return 1; }
  int64_t key_heads() const override { return heads(); }
  int64_t head_size() const override { return hidden() / heads(); }
  int64_t heads() const override { return 1; }
  int64_t hidden() const override { return 1; }
  bool is_causal() const override { return false; }
  int64_t positions() const override { return 100; }
  const std::vector<std::string>& labels() const override { return labels_; }
  bool has_features() const override { return false; }
  HostText read(const std::string&) const override { return {}; }
  std::vector<std::string> show(const HostText&) const override { return {}; }
  Tree natural_tree(const HostText&, int64_t) const override { return {}; }
  HostOutput run(const Tensor&, const Tensor&, const AttentionFunction&) override { return {}; }

 private:
  std::vector<std::string> labels_;
};

// "(0 ((1 2) (3 4)) 5)": every family in brackets.
std::string shape_of(const Tree& tree, int64_t family = 0) {
  std::string words;
  for (int32_t at = tree.child_begin()[family]; at < tree.child_begin()[family + 1]; ++at) {
    const int32_t child = tree.children()[at];
    words += (words.empty() ? "" : " ") + (child < 0 ? shape_of(tree, ~child) : std::to_string(child));
  }
  return "(" + words + ")";
}

TEST(TreeRecipe, SpecialTokensAtTheEndsStandBesideTheTree) {
  const NoModel host;
  auto shape = [&](const TreeRecipe& recipe, int64_t tokens, std::vector<int64_t> special) {
    HostText text;
    text.encoding.ids.resize(tokens);
    text.special = std::move(special);
    return shape_of(recipe.make(host, text));
  };
  EXPECT_EQ(shape({"windows", 2}, 6, {}), "((0 1) (2 3) (4 5))");
  EXPECT_EQ(shape({"windows", 2}, 7, {0, 6}), "(0 ((1 2) (3 4) (5)) 6)");
  EXPECT_EQ(shape({"balanced", 2}, 6, {0, 5}), "(0 ((1 2) (3 4)) 5)");
  EXPECT_EQ(shape({"balanced", 2}, 5, {0, 2}), "(0 ((1 2) (3 4)))") << "one in the middle is a token as others are";
  EXPECT_EQ(shape({"balanced", 2}, 2, {0, 1}), "(0 1)");
}

GapTable random_table(int64_t layers, uint64_t seed) {
  torch::manual_seed(seed);
  GapTable table;
  table.recipes = {{"balanced", 2}, {"balanced", 4}, {"balanced", 8}};
  table.costs = {0.05, 0.1, 0.3};
  for (int64_t layer = 0; layer < layers; ++layer) {
    const Tensor numbers = torch::rand({3}, torch::kDouble);
    table.gaps.push_back({numbers[0].item<double>() + 1, numbers[1].item<double>(), numbers[2].item<double>() / 2});
  }
  return table;
}

// All choices, one after the other.
double least_gap(const GapTable& table, double cut, double budget) {
  const size_t layers = table.gaps.size(), options = table.recipes.size() + 1;
  double least = 1e9;
  for (size_t code = 0, count = static_cast<size_t>(std::pow(options, layers)); code < count; ++code) {
    double gap = 0, cost = 0;
    bool allowed = true;
    for (size_t layer = 0, rest = code; layer < layers; ++layer, rest /= options) {
      const size_t option = rest % options;
      if (option == 0) {
        cost += 1;
      } else {
        allowed &= table.costs[option - 1] <= budget;
        gap += table.gaps[layer][option - 1];
        cost += table.costs[option - 1];
      }
    }
    if (allowed && cost <= (1 - cut) * static_cast<double>(layers) + 1e-6) least = std::min(least, gap);
  }
  return least;
}

TEST(ChooseLayers, LosesLeastOfAllChoicesAndKeepsItsPromise) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const GapTable table = random_table(5, seed);
    for (const double cut : {0.0, 0.2, 0.45, 0.7, 0.9}) {
      for (const double budget : {0.1, 1.0}) {
        double gap = 0, saved = 0;
        for (const LayerSelection& selection : choose_layers(table, cut, budget)) {
          ASSERT_EQ(selection.trees.size(), 1U);
          for (size_t r = 0; r < table.recipes.size(); ++r) {
            if (table.recipes[r].name() != selection.trees[0].name()) continue;
            gap += table.gaps[selection.layer][r];
            saved += 1 - table.costs[r];
            EXPECT_LE(table.costs[r], budget);
          }
        }
        EXPECT_GE(saved / 5, cut - 1e-9);
        EXPECT_NEAR(gap, least_gap(table, cut, budget), 1e-12) << "cut " << cut << " budget " << budget;
      }
    }
    EXPECT_THROW(choose_layers(table, 0.99, 1.0), Error);
    EXPECT_THROW(choose_layers(table, 0.5, 0.01), Error);
  }
}

TEST(GapTable, CandidatesCanBeScoredWithinTheBudget) {
  GapTable table = random_table(1, 1);
  table.gaps = {{0.5, 0.3, 0.1}};
  EXPECT_EQ(table.best_recipe(0, 1.0), 2U);
  EXPECT_EQ(table.best_recipe(0, 0.2), 1U);
  EXPECT_EQ(table.best_recipe(0, 0.01), 0U) << "the cheapest, if none fits";
  // 0.1 and 0.05 are scored, (0.1 + 0.05) / 2, and one attends with its values, 0.1: 0.175 in all.
  EXPECT_EQ(table.candidates(0, 0.17).size(), 1U);
  EXPECT_EQ(table.candidates(0, 0.18).size(), 2U);
  EXPECT_EQ(table.candidates(0, 1.0).size(), 3U);
}

TEST(LinearHead, FindsAPlaneAndIsNotFooledByScale) {
  torch::manual_seed(5);
  const Tensor x = torch::randn({400, 6}) * torch::tensor({1e-3, 1.0, 50.0, 1.0, 1.0, 0.0}) + 7;
  const Tensor labels = ((x.select(1, 0) - 7) * 1e3 + x.select(1, 1) - 7 > 0).to(torch::kLong);
  const LinearHead head = fit_linear_head(x.slice(0, 0, 300), labels.slice(0, 0, 300), 2);
  EXPECT_GT(share_of(head(x.slice(0, 300)).argmax(-1) == labels.slice(0, 300)), 0.95);
}

TEST(LinearHead, IsAMinimumOfItsLoss) {
  torch::manual_seed(6);
  const Tensor x = torch::randn({60, 3}), labels = torch::randint(0, 3, {60}, torch::kLong);
  LinearHead head = fit_linear_head(x, labels, 3);
  auto loss = [&] {
    return (torch::nn::functional::cross_entropy(head(x), labels) + head.l2 * head.weight.square().sum())
        .item<double>();
  };
  const double least = loss();
  for (int i = 0; i < 20; ++i) {
    const Tensor kept = head.weight;
    head.weight = kept + 1e-2 * torch::randn_like(kept);
    EXPECT_GT(loss(), least);
    head.weight = kept;
  }
}

}  // namespace
}  // namespace strata
