// The HSA kernels against the reference: shapes of trees x precisions x instruction sets of this host.
#include <gtest/gtest.h>

#include "cases/hkt_plain.h"
#include "cases/hsa_cases.h"
#include "cases/isas.h"

namespace strata::test {
namespace {

struct KernelCase {
  HsaCase spec;
  Isa isa;
};
std::ostream& operator<<(std::ostream& out, const KernelCase& c) { return out << c.spec << " on " << isa_name(c.isa); }

class HsaKernel : public testing::TestWithParam<KernelCase> {
 protected:
  void SetUp() override { ASSERT_TRUE(set_isa(GetParam().isa).ok()); }
  void TearDown() override { ASSERT_TRUE(set_isa(supported_isas().back()).ok()); }

  template <class S>
  static void run(HsaData<S>& d, int threads = 2) {
    const Status forward = hsa_forward(d.problem(threads), d.outputs());
    ASSERT_TRUE(forward.ok()) << forward.message();
    const Status backward = hsa_backward(d.problem(threads), d.gradients());
    ASSERT_TRUE(backward.ok()) << backward.message();
  }
  template <class S>
  static void expect_close(double tolerance) {
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      HsaData<S> fused(GetParam().spec, seed);
      run(fused);
      HsaData<double> exact(GetParam().spec, seed);
      exact.copy_inputs_from(fused);
      ASSERT_TRUE(hsa_forward_ref(exact.problem(), exact.outputs()).ok());
      ASSERT_TRUE(hsa_backward_ref(exact.problem(), exact.gradients()).ok());
      each_hsa_result(fused, exact, [&](const char* name, const auto& got, const auto& want) {
        EXPECT_LT(relative_error(got, want), tolerance) << name << "\n" << fused.trees_text();
      });
    }
  }
  template <class S>
  static void expect_same_bits() {
    HsaData<S> one(GetParam().spec);
    run(one, 1);
    for (int threads : {2, 3, 8}) {
      HsaData<S> many(GetParam().spec);
      run(many, threads);
      each_hsa_result(many, one, [&](const char* name, const auto& got, const auto& want) {
        EXPECT_EQ(std::memcmp(got.raw().data(), want.raw().data(), got.raw().size() * sizeof(got.raw()[0])), 0) << name;
      });
    }
  }
};
std::vector<KernelCase> all_cases() {
  std::vector<KernelCase> cases;
  for (const std::vector<HsaCase>& table : {hsa_cases(), strata_tree_cases()})
    for (const HsaCase& spec : table)
      for (Isa isa : tested_isas()) cases.push_back({spec, isa});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Cases, HsaKernel, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.spec.name + "_" + isa_name(info.param.isa); });

TEST_P(HsaKernel, Float64EqualsReference) {
  if (!is_for_bfloat16(GetParam().isa)) expect_close<double>(1e-12);
}
TEST_P(HsaKernel, Float32IsClose) {
  if (!is_for_bfloat16(GetParam().isa)) expect_close<float>(1e-5);
}
TEST_P(HsaKernel, BFloat16IsClose) { expect_close<BFloat16>(1e-2); }

TEST_P(HsaKernel, SameBitsAtAnyThreadCount) {
  if (is_for_bfloat16(GetParam().isa)) {
    expect_same_bits<BFloat16>();
  } else {
    expect_same_bits<float>();
  }
}

TEST(HsaScore, WithoutValuesTheScoreIsTheSame) {
  HsaData<float> d({"score", {50, 20}, Shape::kRandom, 6, 2, 16, 16});
  ASSERT_TRUE(hsa_forward(d.problem(), d.outputs()).ok());
  HsaProblem p = d.problem();
  p.v = {};
  Array<float> score(1, 1, 2, 2);
  ASSERT_TRUE(hsa_forward(p, {{}, score.data()}).ok());
  EXPECT_EQ(relative_error(score, d.score), 0.0);
}

TEST(HsaAbuse, AllWeightsZeroGivesZeros) {
  HsaData<float> d({"zeros", {9, 4}, Shape::kRandom, 3, 2, 4, 4, Domain::kSet, true, true});
  for (int64_t t = 0; t < 9; ++t) d.weights(0, 0, t, 0) = 0;
  for (int64_t t = 9; t < 13; ++t) d.weights(0, 0, t, 0) = 1;
  for (int64_t t = 0; t < 9; ++t)  // padding may hold anything
    for (Array<float>* array : {&d.q[0], &d.k[0], &d.v, &d.dout}) (*array)(0, 0, t, 0) = std::nanf("");
  ASSERT_TRUE(hsa_forward(d.problem(), d.outputs()).ok());
  ASSERT_TRUE(hsa_backward(d.problem(), d.gradients()).ok());
  EXPECT_EQ(d.score(0, 0, 0, 0), -std::numeric_limits<float>::infinity());
  for (int64_t t = 0; t < 9; ++t) {
    for (Array<float>* array : {&d.out, &d.dq[0], &d.dk[0], &d.dv}) EXPECT_EQ((*array)(0, 0, t, 0), 0.0f);
    EXPECT_EQ(d.dweights(0, 0, t, 0), 0.0f);
  }
  EXPECT_TRUE(std::isfinite(d.out(0, 1, 10, 2)));
}

TEST(HsaAbuse, ExtremeTrees) {
  std::mt19937_64 random(1);
  for (const auto& [shape, tokens] :
       {std::pair{Shape::kChain, 3000}, {Shape::kLeftDeep, 3000}, {Shape::kStar, 20000}}) {
    HsaData<float> d({"extreme", {tokens}, shape, 2, 1, 2, 2});
    ASSERT_TRUE(hsa_forward(d.problem(2), d.outputs()).ok());
    ASSERT_TRUE(hsa_backward(d.problem(2), d.gradients()).ok());
    EXPECT_TRUE(std::isfinite(d.score(0, 0, 0, 0)));
    d.out.each([&](auto... at) { ASSERT_TRUE(std::isfinite(d.out(at...))); });
  }
  Tree chain;  // a hundred thousand families of one child, one below the other
  std::vector<int64_t> parent(100001);
  for (int64_t n = 0; n <= 100000; ++n) parent[n] = n - 1;
  ASSERT_TRUE(tree_from_parents(parent, Domain::kSet, &chain).ok());
  EXPECT_EQ(chain.depth(), 100000);
}

TEST(HsaErrors, MistakesAreNamed) {
  auto refuse = [](auto change, const std::string& words) {
    HsaData<float> d({"errors", {6, 4}, Shape::kBalanced, 3, 1, 4, 4, Domain::kSequence, true});
    HsaProblem p = d.problem();
    HsaGradients g = d.gradients();
    change(p, g, d);
    const std::string message = hsa_backward(p, g).message();
    EXPECT_NE(message.find(words), std::string::npos) << "message: " << message << "\nexpected: " << words;
  };
  refuse([](auto& p, auto&, auto&) { p.heads = 0; }, "heads: expected a positive multiple of key_heads, got heads = 0");
  refuse([](auto& p, auto&, auto&) { p.head_size = 300; }, "head_size: expected 1 to 256, got 300");
  refuse([](auto& p, auto&, auto&) { p.trees = nullptr; }, "trees: expected a pointer");
  refuse([](auto& p, auto&, auto&) { p.q[0].data = nullptr; }, "q[0]: expected a pointer");
  refuse([](auto& p, auto&, auto&) { p.v.data = nullptr; }, "v: expected a pointer");
  refuse([](auto&, auto& g, auto&) { g.dk[0].data = nullptr; }, "dk[0]: expected a pointer");
  refuse([](auto& p, auto&, auto&) { p.places = 2; }, "has 3 children, positions has 2 places");
  refuse([](auto&, auto&, auto& d) { d.weights(0, 0, 7, 0) = -1; },
         "weights: expected finite numbers of 0 or more, got -1 for token 1 of sequence 1");
  refuse([](auto&, auto&, auto& d) { d.weights(0, 0, 0, 0) = std::nanf(""); }, "got nan for token 0 of sequence 0");
  refuse([](auto& p, auto&, auto&) { p.scale = std::nan(""); }, "scale: expected a finite number");
  refuse([](auto& p, auto&, auto&) { p.weights.data = nullptr; }, "dweights: expected null");
}

}  // namespace
}  // namespace strata::test
