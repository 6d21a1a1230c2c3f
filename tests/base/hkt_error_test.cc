// Every wrong argument is refused, with a message that names it.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "cases/hkt_case.h"
#include "strata/cpu.h"

namespace strata::test {
namespace {

struct Mistake {
  std::string expected_words;  // the message must hold each of these, separated by '|'
  std::function<void(HktProblem&, HktOutputs&, HktGradients&)> make;
};

void expect_words(const std::string& message, const std::string& words) {
  size_t from = 0;
  while (from <= words.size()) {
    const size_t to = std::min(words.find('|', from), words.size());
    EXPECT_NE(message.find(words.substr(from, to - from)), std::string::npos)
        << "message: " << message << "\nmissing: " << words.substr(from, to - from);
    from = to + 1;
  }
}

TEST(HktErrors, EachMistakeIsNamed) {
  static const int64_t too_long[] = {3, 99};
  static const int64_t negative[] = {3, -1};
  static const float infinite[] = {0.5f, 0.5f, std::numeric_limits<float>::infinity(), 0.5f};
  static const float not_a_number[] = {0.5f, std::nanf(""), 0.5f, 0.5f};
  const std::vector<Mistake> mistakes = {
      {"levels|1 to 8|got 9", [](auto& p, auto&, auto&) { p.levels = 9; }},
      {"levels|got 0", [](auto& p, auto&, auto&) { p.levels = 0; }},
      {"head_size|1 to 256|got 257", [](auto& p, auto&, auto&) { p.head_size = 257; }},
      {"value_size|got 0", [](auto& p, auto&, auto&) { p.value_size = 0; }},
      {"heads|multiple of key_heads|key_heads = 3", [](auto& p, auto&, auto&) { p.key_heads = 3; }},
      {"heads|key_heads = 0", [](auto& p, auto&, auto&) { p.key_heads = 0; }},
      {"batch|got -1", [](auto& p, auto&, auto&) { p.batch = -1; }},
      {"tokens|got -5", [](auto& p, auto&, auto&) { p.tokens = -5; }},
      {"scale|finite|nan", [](auto& p, auto&, auto&) { p.scale = std::nan(""); }},
      {"threads|got -2", [](auto& p, auto&, auto&) { p.threads = -2; }},
      {"dtype|kBFloat16|got 7", [](auto& p, auto&, auto&) { p.dtype = static_cast<DType>(7); }},
      {"weights|null", [](auto& p, auto&, auto&) { p.weights = nullptr; }},
      {"weights|finite|inf|head 1, level 0", [](auto& p, auto&, auto&) { p.weights = infinite; }},
      {"weights|nan|head 0, level 1", [](auto& p, auto&, auto&) { p.weights = not_a_number; }},
      {"lengths|tokens = 5|got 99|sequence 1", [](auto& p, auto&, auto&) { p.lengths = too_long; }},
      {"lengths|got -1", [](auto& p, auto&, auto&) { p.lengths = negative; }},
      {"key_tokens|2^30|got 2147483648", [](auto& p, auto&, auto&) { p.key_tokens = int64_t{1} << 31; }},
      {"key_lengths|tokens = 5|got 99",
       [](auto& p, auto&, auto&) {
         p.key_tokens = 5;
         p.key_lengths = too_long;
       }},
      {"slopes|finite|inf|head 0", [](auto& p, auto&, auto&) { p.slopes = infinite + 2; }},
      {"dropout|0 to 0.9999|got 1", [](auto& p, auto&, auto&) { p.dropout.probability = 1; }},
      {"dropout state|null",
       [](auto& p, auto&, auto&) {
         p.dropout = {0.5, nullptr};
       }},
      {"begins|mix at level 1", [](auto& p, auto&, auto&) { p.v.begins = p.q[0].begins = p.k[0].begins = too_long; }},
      {"bias|none with packed",
       [](auto& p, auto&, auto&) {
         for (int l = 0; l < 2; ++l) p.q[l].begins = p.k[l].begins = too_long;
         p.v.begins = too_long;
         p.bias = p.v;
       }},
      {"lengths|packed|null",
       [](auto& p, auto&, auto&) {
         for (int l = 0; l < 2; ++l) p.q[l].begins = p.k[l].begins = too_long;
         p.v.begins = too_long;
       }},
      {"q[1]|null", [](auto& p, auto&, auto&) { p.q[1].data = nullptr; }},
      {"k[0]|null", [](auto& p, auto&, auto&) { p.k[0].data = nullptr; }},
      {"v|null", [](auto& p, auto&, auto&) { p.v.data = nullptr; }},
      {"out|null", [](auto&, auto& o, auto&) { o.out.data = nullptr; }},
      {"lse|null", [](auto&, auto& o, auto&) { o.lse = nullptr; }},
      {"dout|null", [](auto&, auto&, auto& g) { g.dout.data = nullptr; }},
      {"dq[0]|null", [](auto&, auto&, auto& g) { g.dq[0].data = nullptr; }},
      {"dk[1]|null", [](auto&, auto&, auto& g) { g.dk[1].data = nullptr; }},
      {"dv|null", [](auto&, auto&, auto& g) { g.dv.data = nullptr; }},
      {"dweights|null", [](auto&, auto&, auto& g) { g.dweights = nullptr; }},
      {"dbias|no bias", [](auto&, auto&, auto& g) { g.dbias = g.dv; }},
      {"dbias|token strides|0",
       [](auto& p, auto&, auto& g) {
         p.bias = p.v;
         g.dbias = {g.dv.data, {0, 0, 0, 1}};
       }},
  };
  for (const Mistake& mistake : mistakes) {
    HktData<float> d(HktCase{"errors", 2, 2, 2, 5, 2, 4, 4});
    HktProblem problem = d.problem();
    HktOutputs outputs = d.outputs();
    HktGradients gradients = d.gradients();
    mistake.make(problem, outputs, gradients);
    const Status status = hkt_backward(problem, outputs, gradients);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << mistake.expected_words;
    expect_words(status.message(), mistake.expected_words);
  }
}

TEST(HktErrors, DecodeNeedsLengths) {
  float number = 0, weight = 1;
  HktDecode step;
  step.batch = step.heads = step.key_heads = 1;
  step.head_size = step.value_size = 1;
  step.weights = &weight;
  step.q[0].data = step.k[0].data = step.v.data = step.out.data = &number;
  const Status status = hkt_decode(step);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  expect_words(status.message(), "lengths|null");
}

TEST(HktErrors, MaterializeChecksItsIndices) {
  HktData<double> d(HktCase{"errors", 2, 2, 2, 5, 2, 4, 4});
  expect_words(hkt_materialize(d.problem(), 2, 0, nullptr, nullptr).message(), "batch|0 to 1|got 2");
  expect_words(hkt_materialize(d.problem(), 0, 2, nullptr, nullptr).message(), "head|0 to 1|got 2");
}

TEST(Isa, ThePortableOneAlwaysExists) {
  ASSERT_FALSE(supported_isas().empty());
  EXPECT_EQ(supported_isas().front(), Isa::kPortable);
  EXPECT_STREQ(isa_name(Isa::kPortable), "portable");
}

TEST(Isa, TheEmulatedOneIsNeverOfferedByItself) {
  for (const Isa isa : supported_isas()) EXPECT_NE(isa, Isa::kAmxEmulated);
  EXPECT_NE(current_isa(), Isa::kAmxEmulated);
  EXPECT_STREQ(isa_name(Isa::kAmxEmulated), "amx_emulated");
}

TEST(Isa, WhatTheHostDoesNotHaveIsRefused) {
  const std::vector<Isa> supported = supported_isas();
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    if (std::find(supported.begin(), supported.end(), isa) != supported.end()) continue;
    expect_words(set_isa(isa).message(), std::string("does not support|") + isa_name(isa));
  }
}

}  // namespace
}  // namespace strata::test
