// HSA injected into pretrained models.
#include "hub/inject.h"

#include <gtest/gtest.h>

#include "data/support.h"
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

Injection with_trees(std::vector<int64_t> layers, const std::function<Tree(int64_t)>& tree) {
  Injection injection;
  injection.layers = std::move(layers);
  for (const int64_t length : {8, 5}) injection.trees.push_back(encode_tree(tree(length)));
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
  injection.layers = {0, 1};
  injection.branching = 2;
  model.attention = inject_hsa(model.attention, injection, true);
  const Tensor before = model.hidden_states(kIds, kLengths).back();
  Tensor other = kIds.clone();
  other[0].slice(0, 5) = 20;
  EXPECT_TRUE(torch::equal(model.hidden_states(other, kLengths).back()[0].slice(0, 0, 5), before[0].slice(0, 0, 5)));
  injection.branching = 16;  // as many as there are tokens: exactly softmax
  Pretrained flat = Pretrained::load(folder_of("gpt2"));
  const Tensor softmax = run(flat);
  flat.attention = inject_hsa(flat.attention, injection, true);
  EXPECT_LT((run(flat) - softmax).abs().max().item<double>(), 1e-4);
}

TEST(Inject, TheGapIsZeroForSoftmaxAndPositiveForTrees) {
  torch::manual_seed(1);
  const Tensor q = torch::randn({2, 3, 8, 4}), k = torch::randn({2, 3, 8, 4});
  EXPECT_LT(injection_gap(q, k, kLengths, with_trees({0}, star), false).abs().max().item<double>(), 1e-5);
  const Tensor gap = injection_gap(q, k, kLengths, with_trees({0}, halves), false);
  EXPECT_EQ(gap.sizes(), (std::vector<int64_t>{2}));
  EXPECT_GT(gap.min().item<double>(), 1e-3);
  Injection stream;
  stream.branching = 2;
  EXPECT_GT(injection_gap(q, k, kLengths, stream, true).min().item<double>(), 1e-3);
  stream.branching = 16;
  EXPECT_LT(injection_gap(q, k, kLengths, stream, true).abs().max().item<double>(), 1e-5);
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
