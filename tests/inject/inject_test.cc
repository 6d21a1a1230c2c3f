// HSA injected into pretrained models.
#include "inject/inject.h"

#include <gtest/gtest.h>

#include "data/support.h"
#include "inject/timing.h"
#include "strata/hsa_stream.h"
#include "torch/hsa_op.h"

namespace strata {
namespace {

using torch::Tensor;

fs::path folder_of(const std::string& name) { return fs::path(STRATA_TEST_DATA) / name; }

Tree made(const std::function<Status(Tree*)>& make) {
  Tree tree;
  const Status status = make(&tree);
  EXPECT_TRUE(status.ok()) << status.message();
  return tree;
}

const Tensor kIds = torch::tensor({{3, 17, 25, 4, 9, 30, 11, 2}, {5, 6, 7, 8, 12, 1, 1, 1}});
const Tensor kLengths = torch::tensor({8, 5});

Injection with_trees(const std::vector<int64_t>& layers, const std::function<Tree(int64_t)>& tree) {
  Injection injection;
  std::vector<Tensor> trees;
  for (const int64_t length : {8, 5}) trees.push_back(encode_tree(tree(length)));
  for (const int64_t layer : layers) injection.trees[layer] = {trees};
  return injection;
}
Tree star(int64_t tokens) {
  return made([&](Tree* tree) { return star_tree(tokens, Domain::kSet, tree); });
}
Tree halves(int64_t tokens) {
  return made([&](Tree* tree) { return balanced_tree(tokens, 2, Domain::kSet, tree); });
}

// Real tokens of the last hidden states.
Tensor run(const Pretrained& model) {
  const Tensor last = model.hidden_states(kIds, kLengths).back();
  return torch::cat({last[0], last[1].narrow(0, 0, 5)});
}

TEST(Inject, AStarIsSoftmaxAndOnlyChosenLayersChange) {
  for (const char* name : {"bert", "roberta"}) {
    Pretrained model = Pretrained::load(folder_of(name));
    const AttentionFunction softmax = model.attention;
    const Tensor before = run(model);
    model.attention = inject_hsa(softmax, with_trees({0, 1}, star), false);
    EXPECT_LT((run(model) - before).abs().max().item<double>(), 1e-5);
    model.attention = inject_hsa(softmax, with_trees({}, halves), false);
    EXPECT_TRUE(torch::equal(run(model), before));
    model.attention = inject_hsa(softmax, with_trees({1}, halves), false);
    EXPECT_GT((run(model) - before).abs().max().item<double>(), 1e-3);
  }
}

TEST(Inject, ExactTokensAttendAsBefore) {
  Pretrained model = Pretrained::load(folder_of("bert"));
  const AttentionFunction softmax = model.attention;
  const Tensor before = run(model);
  Injection injection = with_trees({1}, halves);  // the last layer: what it gives out depends on its own rows alone
  injection.exact = {{0, 7}, {0}};
  model.attention = inject_hsa(softmax, injection, false);
  const Tensor after = run(model);
  for (const int64_t row : {0, 7, 8}) EXPECT_LT((after[row] - before[row]).abs().max().item<double>(), 1e-5) << row;
  EXPECT_GT((after[3] - before[3]).abs().max().item<double>(), 1e-4);
}

TEST(Inject, CausalModelsStayCausal) {
  Pretrained model = Pretrained::load(folder_of("gpt2"));
  Injection injection;
  injection.streams = {{0, 2}, {1, 3}};
  model.attention = inject_hsa(model.attention, injection, true);
  const Tensor before = model.hidden_states(kIds, kLengths).back();
  Tensor other = kIds.clone();
  other[0].slice(0, 5) = 20;
  EXPECT_TRUE(torch::equal(model.hidden_states(other, kLengths).back()[0].slice(0, 0, 5), before[0].slice(0, 0, 5)));
  injection.streams = {{0, 16}, {1, 16}};  // as many as there are tokens: exactly softmax
  Pretrained flat = Pretrained::load(folder_of("gpt2"));
  const Tensor softmax = run(flat);
  flat.attention = inject_hsa(flat.attention, injection, true);
  EXPECT_LT((run(flat) - softmax).abs().max().item<double>(), 1e-4);
}

// Of a model of another shape than any folder of the tests; the numbers by hand.
TEST(Inject, SeededModelsHaveTheShapeAndTheFlopsOfTheirConfig) {
  const PretrainedConfig roberta = PretrainedConfig::from_json(
      R"({"model_type": "roberta", "num_hidden_layers": 3, "hidden_size": 24, "num_attention_heads": 2,
          "intermediate_size": 40, "vocab_size": 90, "max_position_embeddings": 18, "type_vocab_size": 1})",
      "a test");
  Pretrained model = Pretrained::seeded(roberta, 7);
  EXPECT_FALSE(model.has_classes());
  EXPECT_EQ(model.config().longest(), 16);
  const Tensor before = run(model);
  EXPECT_EQ(before.sizes(), (std::vector<int64_t>{13, 24}));
  EXPECT_TRUE(torch::equal(run(Pretrained::seeded(roberta, 7)), before));
  EXPECT_FALSE(torch::equal(run(Pretrained::seeded(roberta, 8)), before));

  Injection injection = with_trees({2}, halves);
  injection.exact = {{0, 7}, {0}};
  injection.costs = std::make_shared<std::vector<AttentionCost>>(3);
  model.attention = inject_hsa(softmax_attention(false), injection, false);
  const Tensor after = run(model);
  EXPECT_GT((after - before).abs().max().item<double>(), 1e-5);
  const ForwardFlops flops = forward_flops(roberta, 13, *injection.costs);
  EXPECT_EQ(flops.projections, 2.0 * 13 * 3 * (4 * 24 * 24 + 2 * 24 * 40));
  double trees = 0;
  for (const Tensor& tree : injection.trees[2][0]) trees += tree_cost(tree);
  // Two layers of softmax, and one with trees and exact rows: 2 of 8 tokens, 1 of 5. Scores and values, 2 FLOPs each.
  EXPECT_EQ(flops.attention, 4.0 * 24 * (2 * (64 + 25) + trees + 2 * 8 + 1 * 5));

  model.to(torch::kBFloat16);
  const Tensor rounded = run(model);
  EXPECT_EQ(rounded.scalar_type(), torch::kBFloat16);
  EXPECT_LT((rounded.to(torch::kFloat) - after).abs().max().item<double>(), 0.1);
}

TEST(Inject, SeededLanguageModelsAreCausalAndStream) {
  const PretrainedConfig gpt2 = PretrainedConfig::from_json(
      R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 24, "n_head": 2, "vocab_size": 90, "n_positions": 16})",
      "a test");
  Pretrained model = Pretrained::seeded(gpt2, 7);
  Injection injection;
  injection.costs = std::make_shared<std::vector<AttentionCost>>(2);
  model.attention = inject_hsa(softmax_attention(true), injection, true);
  const Tensor softmax = run(model);
  EXPECT_EQ(forward_flops(gpt2, 13, *injection.costs).attention, 2.0 * 24 * 2 * (8 * 9 + 5 * 6));
  injection.streams = {{1, 16}};
  model.attention = inject_hsa(softmax_attention(true), injection, true);
  EXPECT_LT((run(model) - softmax).abs().max().item<double>(), 1e-4);
  injection.streams = {{1, 2}};
  model.attention = inject_hsa(softmax_attention(true), injection, true);
  EXPECT_GT((run(model) - softmax).abs().max().item<double>(), 1e-4);
}

TEST(Inject, TheGapIsZeroForSoftmaxAndPositiveForTrees) {
  torch::manual_seed(1);
  const Tensor q = torch::randn({2, 3, 8, 4}), k = torch::randn({2, 3, 8, 4});
  auto gap = [&](const std::function<Tree(int64_t)>& tree) {
    return tree_gap(q, k, kLengths, with_trees({0}, tree).trees[0][0]);
  };
  EXPECT_LT(gap(star).abs().max().item<double>(), 1e-5);
  EXPECT_EQ(gap(halves).sizes(), (std::vector<int64_t>{2}));
  EXPECT_GT(gap(halves).min().item<double>(), 1e-3);
  EXPECT_GT(stream_gap(q, k, kLengths, 2).min().item<double>(), 1e-3);
  EXPECT_LT(stream_gap(q, k, kLengths, 16).abs().max().item<double>(), 1e-5);
}

TEST(Inject, EverySequenceTakesTheTreeClosestToSoftmax) {
  torch::manual_seed(2);
  const Tensor q = torch::randn({2, 3, 8, 4}), k = torch::randn({2, 3, 8, 4}), v = torch::randn({2, 3, 8, 4});
  const AttentionFunction softmax = softmax_attention(false);
  auto thirds = [](int64_t tokens) {
    return made([&](Tree* tree) { return window_tree(tokens, {3, 8}, 1, Domain::kSet, tree); });
  };
  const auto a = with_trees({0}, halves).trees[0][0], b = with_trees({0}, thirds).trees[0][0];
  auto out = [&](const std::vector<std::vector<Tensor>>& candidates) {
    Injection injection;
    injection.trees[0] = candidates;
    return inject_hsa(softmax, injection, false)(0, q, k, v, kLengths);
  };
  const Tensor both = out({a, b}), gap_a = tree_gap(q, k, kLengths, a), gap_b = tree_gap(q, k, kLengths, b);
  for (int64_t n = 0; n < 2; ++n) {
    const bool first = gap_a[n].item<double>() < gap_b[n].item<double>();
    EXPECT_TRUE(torch::equal(both[n], out({first ? a : b})[n])) << n;
  }
}

TEST(Inject, CountsWhatItSpends) {
  torch::manual_seed(3);
  const Tensor q = torch::randn({2, 3, 8, 4});
  Injection injection = with_trees({1}, halves);  // 8 tokens: 7 families of 2; 5 tokens: 2 + 1 of 2, one of 1
  injection.exact = {{0}, {}};
  injection.costs = std::make_shared<std::vector<AttentionCost>>(2);
  const AttentionFunction attend = inject_hsa(softmax_attention(false), injection, false);
  for (const int64_t layer : {0, 1}) attend(layer, q, q, q, kLengths);
  const double flat = 2 * (64 + 25);
  EXPECT_EQ(injection.costs->at(0).flat, flat);
  EXPECT_EQ(injection.costs->at(0).spent, flat);
  double trees = 0;
  for (const int64_t length : {8, 5}) trees += static_cast<double>(2 * halves(length).cost());
  EXPECT_EQ(trees, 2 * (28 + tree_cost(injection.trees[1][0][1])));
  EXPECT_EQ(injection.costs->at(1).spent, trees + 2 * 8);
  Injection streams;
  streams.streams = {{0, 2}};
  streams.costs = std::make_shared<std::vector<AttentionCost>>(1);
  inject_hsa(softmax_attention(true), streams, true)(0, q, q, q, kLengths);
  EXPECT_EQ(streams.costs->at(0).flat, 8 * 9 + 5 * 6);
  EXPECT_EQ(streams.costs->at(0).spent, 2 * (hsa_stream_cost(8, 2) + hsa_stream_cost(5, 2)));
  EXPECT_EQ(hsa_stream_cost(8, 2), 8 + 0 + 1 + 1 + 2 + 1 + 2 + 2 + 3);
}

TEST(SentenceTree, HasSentencesOverTokensAndSpecialTokensBesideThem) {
  const std::string text = "One two. Three four five! Six.";
  Encoding encoding;  // [CLS] One two . Three four fi ve ! Six . [SEP]
  auto add = [&](int64_t begin, int64_t end) {
    encoding.ids.push_back(1);
    encoding.places.push_back({begin, end});
  };
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{0, 0},
                                                                           {0, 3},
                                                                           {4, 7},
                                                                           {7, 8},
                                                                           {9, 14},
                                                                           {15, 19},
                                                                           {20, 22},
                                                                           {22, 24},
                                                                           {24, 25},
                                                                           {26, 29},
                                                                           {29, 30},
                                                                           {30, 30}})
    add(begin, end);
  const Tree tree = sentence_tree(text, encoding, 16);
  ASSERT_EQ(tree.tokens(), 12);
  // Families: the root with both special tokens and the paragraph, the paragraph, three sentences of 3, 5 and 2.
  std::vector<int32_t> sizes;
  for (int64_t family = 0; family < tree.families(); ++family)
    sizes.push_back(tree.child_begin()[family + 1] - tree.child_begin()[family]);
  EXPECT_EQ(sizes, (std::vector<int32_t>{3, 3, 3, 5, 2})) << tree.to_string();
  EXPECT_LE(sentence_tree(text, encoding, 2).largest_family(), 2);
  EXPECT_EQ(sentence_tree("\xff", encoding, 4).tokens(), 12);
  EXPECT_EQ(sentence_tree("", encoding, 4).tokens(), 12);
}

}  // namespace
}  // namespace strata
