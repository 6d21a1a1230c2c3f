// The modern block: its parts against their formulas, the whole model against plain loops in float64, caches against
// the parallel form, and what is refused.
#include "model/modern.h"

#include <gtest/gtest.h>

#include <cmath>

#include "data/task.h"
#include "model/hsa_attention.h"
#include "model/model_file.h"
#include "model/sequence_model.h"
#include "torch/hsa_op.h"
#include "train/tiny_run.h"

namespace strata {
namespace {

using torch::Tensor;
using Row = std::vector<double>;
using Rows = std::vector<Row>;

Rows rows_of(const Tensor& t) {
  const Tensor dense = t.detach().to(torch::kDouble).contiguous();
  Rows rows;
  for (int64_t i = 0; i < dense.size(0); ++i) {
    const double* first = dense.data_ptr<double>() + i * dense.size(1);
    rows.emplace_back(first, first + dense.size(1));
  }
  return rows;
}
Row row_of(const Tensor& t) { return rows_of(t.unsqueeze(0))[0]; }

// ---- the formulas, one token at a time

Row times(const Rows& matrix, const Row& x) {
  Row y;
  for (const Row& row : matrix) {
    double sum = 0;
    for (size_t c = 0; c < x.size(); ++c) sum += row[c] * x[c];
    y.push_back(sum);
  }
  return y;
}

Row plain_rms_norm(const Row& x, const Row& weight, double epsilon) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  Row y;
  for (size_t c = 0; c < x.size(); ++c) y.push_back(x[c] * scale * weight[c]);
  return y;
}

Row plain_swiglu(const Row& x, const Rows& gate, const Rows& widen, const Rows& narrow) {
  Row g = times(gate, x);
  const Row u = times(widen, x);
  for (size_t c = 0; c < g.size(); ++c) g[c] = g[c] / (1 + std::exp(-g[c])) * u[c];
  return times(narrow, g);
}

// Every head of x is rotated by the angles of `position`.
void plain_rotate(Row& x, size_t heads, size_t position) {
  const size_t d = x.size() / heads;
  for (size_t h = 0; h < heads; ++h) {
    for (size_t c = 0; c < d / 2; ++c) {
      const double angle =
          static_cast<double>(position) / std::pow(10000.0, 2 * static_cast<double>(c) / static_cast<double>(d));
      const double a = x[h * d + c], b = x[h * d + c + d / 2];
      x[h * d + c] = a * std::cos(angle) - b * std::sin(angle);
      x[h * d + c + d / 2] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
}

// Causal softmax attention; query head h reads key head h / group.
Rows plain_attention(const Rows& q, const Rows& k, const Rows& v, size_t heads, size_t key_heads) {
  const size_t d = q[0].size() / heads, group = heads / key_heads;
  Rows out(q.size(), Row(q[0].size(), 0.0));
  for (size_t t = 0; t < q.size(); ++t) {
    for (size_t h = 0; h < heads; ++h) {
      const size_t from = h / group * d;
      double sum = 0;
      for (size_t s = 0; s <= t; ++s) {
        double score = 0;
        for (size_t c = 0; c < d; ++c) score += q[t][h * d + c] * k[s][from + c];
        const double weight = std::exp(score / std::sqrt(static_cast<double>(d)));
        for (size_t c = 0; c < d; ++c) out[t][h * d + c] += weight * v[s][from + c];
        sum += weight;
      }
      for (size_t c = 0; c < d; ++c) out[t][h * d + c] /= sum;
    }
  }
  return out;
}

// The logits of a language model of modern blocks with flat attention, from its parameters alone.
Rows plain_model(const SequenceModel& model, const std::vector<int64_t>& tokens) {
  constexpr double kEpsilon = 1e-6;
  const auto parameters = model->named_parameters();
  const size_t heads = model->config.heads, key_heads = model->config.key_head_count();
  auto matrix = [&](const std::string& name) { return rows_of(parameters[name]); };
  auto vector = [&](const std::string& name) { return row_of(parameters[name]); };
  const Rows embedding = matrix("embedding.weight");
  Rows x;
  for (const int64_t token : tokens) x.push_back(embedding[token]);
  for (int64_t layer = 0; layer < model->config.layers; ++layer) {
    const std::string name = "layer_" + std::to_string(layer) + "_", at = name + "attention.";
    Rows q, k, v;
    for (size_t t = 0; t < x.size(); ++t) {
      const Row normed = plain_rms_norm(x[t], vector(name + "attention_norm.weight"), kEpsilon);
      q.push_back(times(matrix(at + "query.weight"), normed));
      k.push_back(times(matrix(at + "key.weight"), normed));
      v.push_back(times(matrix(at + "value.weight"), normed));
      plain_rotate(q[t], heads, t);
      plain_rotate(k[t], key_heads, t);
    }
    const Rows mixed = plain_attention(q, k, v, heads, key_heads);
    const Rows gate = matrix(name + "ffn.gate.weight"), widen = matrix(name + "ffn.widen.weight"),
               narrow = matrix(name + "ffn.narrow.weight"), out = matrix(at + "out.weight");
    for (size_t t = 0; t < x.size(); ++t) {
      const Row attended = times(out, mixed[t]);
      for (size_t c = 0; c < attended.size(); ++c) x[t][c] += attended[c];
      const Row fed =
          plain_swiglu(plain_rms_norm(x[t], vector(name + "ffn_norm.weight"), kEpsilon), gate, widen, narrow);
      for (size_t c = 0; c < fed.size(); ++c) x[t][c] += fed[c];
    }
  }
  Rows logits;
  for (const Row& row : x)
    logits.push_back(times(matrix("head.weight"), plain_rms_norm(row, vector("norm.weight"), kEpsilon)));
  return logits;
}

double distance(const Rows& a, const Rows& b) {
  double largest = a.size() == b.size() ? 0 : 1e9;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    for (size_t c = 0; c < a[i].size(); ++c) largest = std::max(largest, std::abs(a[i][c] - b[i][c]));
  }
  return largest;
}

// Norms begin as ones, which would hide a weight that is not used.
void shake(torch::nn::Module& module) {
  torch::NoGradGuard no_grad;
  for (Tensor& parameter : module.parameters()) parameter.add_(0.2 * torch::randn_like(parameter));
}

ModelConfig modern_config(const std::string& attention, int64_t key_heads) {
  ModelConfig config;
  config.block = "modern";
  config.attention = attention;
  config.model_size = 24;
  config.heads = 4;
  config.key_heads = key_heads;
  config.branching = 3;
  return config;
}

ModelShape text_shape(int64_t length) {
  ModelShape shape;
  shape.vocabulary = shape.outputs = 20;
  shape.length = length;
  shape.next_token = true;
  return shape;
}

// ---- tests

TEST(RmsNorm, IsItsFormula) {
  torch::manual_seed(1);
  for (const double epsilon : {1e-6, 1e-5, 0.5}) {
    RmsNorm norm(RmsNormOptions(7).epsilon(epsilon));
    shake(*norm);
    const Tensor x = 3 * torch::randn({5, 7});
    const Rows rows = rows_of(x), got = rows_of(norm(x));
    Rows want;
    for (const Row& row : rows) want.push_back(plain_rms_norm(row, row_of(norm->weight), epsilon));
    EXPECT_LT(distance(got, want), 1e-6);
  }
  RmsNorm norm(RmsNormOptions(4).epsilon(1e-6));
  EXPECT_EQ(norm(torch::zeros({2, 4})).abs().max().item<float>(), 0) << "rows of zeros stay zeros";
  // Squares of these would overflow in float16 and lose half of their digits in bfloat16.
  const Tensor large = torch::full({1, 4}, 1000.0);
  EXPECT_NEAR(norm(large.to(torch::kBFloat16)).to(torch::kFloat)[0][0].item<float>(), 1, 0.01);
  EXPECT_THROW(norm(torch::zeros({2, 5})), c10::Error);
  EXPECT_THROW(RmsNorm(0), c10::Error);
}

TEST(SwiGlu, IsItsFormula) {
  torch::manual_seed(2);
  SwiGlu ffn(6, 16);
  const auto parameters = ffn->named_parameters();
  EXPECT_EQ(parameters.size(), 3u) << "no biases";
  const Tensor x = 2 * torch::randn({2, 3, 6});
  Rows want;
  for (const Row& row : rows_of(x.view({6, 6})))
    want.push_back(plain_swiglu(row, rows_of(parameters["gate.weight"]), rows_of(parameters["widen.weight"]),
                                rows_of(parameters["narrow.weight"])));
  EXPECT_LT(distance(rows_of(ffn(x).view({6, 6})), want), 1e-5);
  EXPECT_THROW(SwiGlu(6, 0), c10::Error);
}

TEST(ModernBlock, IsItsPlainComposition) {
  for (const int64_t key_heads : {0, 1, 2}) {
    torch::manual_seed(3);
    SequenceModel model(modern_config("flat", key_heads), text_shape(30));
    shake(*model);
    model->eval();
    torch::NoGradGuard no_grad;
    const std::vector<int64_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2};
    const Tensor ids = torch::tensor(tokens).unsqueeze(0), length = torch::tensor({ids.size(1)});
    const Rows want = plain_model(model, tokens);
    EXPECT_LT(distance(rows_of(model->forward({ids, length, {}})[0]), want), 1e-4) << "float32, " << key_heads;
    model->to(torch::kDouble);
    EXPECT_LT(distance(rows_of(model->forward({ids, length, {}})[0]), want), 1e-12) << "float64, " << key_heads;
  }
}

TEST(ModernBlock, HasNoBiasesAndTheWeightsOfAClassicBlock) {
  ModelConfig config = modern_config("flat", 0);
  config.model_size = 96;
  SequenceModel modern(config, text_shape(16));
  EXPECT_EQ(modern->config.positions, "rotary");
  EXPECT_EQ(modern->config.ffn_width(), 256) << "8/3 of 96";
  for (const auto& item : modern->named_parameters())
    EXPECT_EQ(item.key().find("bias"), std::string::npos) << item.key();
  config.block = "classic";
  config.positions = "rotary";
  SequenceModel classic(config, text_shape(16));
  const auto a = static_cast<double>(modern->parameter_count()), b = static_cast<double>(classic->parameter_count());
  EXPECT_NEAR(a / b, 1, 0.02);
  config.block = "modern";
  for (const int64_t size : {1, 7, 16, 64, 100}) {
    config.model_size = size;
    EXPECT_EQ(config.ffn_width() % 8, 0);
    EXPECT_GE(3 * config.ffn_width(), 8 * size);
    EXPECT_LT(3 * (config.ffn_width() - 8), 8 * size);
  }
}

TEST(ModernBlock, CachesEqualTheParallelForm) {
  for (const char* attention : {"flat", "hkt", "hsa", "strata"}) {
    for (const int64_t key_heads : {0, 1, 2}) {
      for (const char* positions : {"auto", "learned"}) {
        torch::manual_seed(4);
        ModelConfig config = modern_config(attention, key_heads);
        config.positions = positions;
        SequenceModel model(config, text_shape(40));
        shake(*model);
        model->eval();
        torch::NoGradGuard no_grad;
        const Tensor ids = torch::randint(1, 20, {1, 40}, torch::kLong);
        const Tensor whole = model->forward({ids, torch::tensor({40}), {}})[0];
        auto stream = model->start_stream();
        for (int64_t t = 0; t < 40; ++t) {
          const Tensor step = model->step(ids[0][t].item<int64_t>(), stream);
          ASSERT_LT((step - whole[t]).abs().max().item<double>(), 1e-4)
              << attention << ", " << key_heads << " key heads, " << positions << ", token " << t;
        }
      }
    }
  }
}

TEST(ModernBlock, FewerKeyHeadsMakeTheCachesSmaller) {
  for (const char* attention : {"flat", "hsa", "strata"}) {
    auto bytes = [&](int64_t key_heads) {
      SequenceModel model(modern_config(attention, key_heads), text_shape(64));
      model->eval();
      auto stream = model->start_stream();
      for (int64_t t = 0; t < 64; ++t) model->step(1 + t % 19, stream);
      return stream.bytes();
    };
    EXPECT_LT(bytes(1), bytes(0) / 2) << attention;
  }
}

// Grouped heads of HSA are the heads of a module whose key heads are repeated.
TEST(HsaKeyHeads, EqualRepeatedKeyHeads) {
  for (const bool streaming : {false, true}) {
    torch::manual_seed(5);
    auto options = HsaAttentionOptions(16, 4).streaming(streaming).rotary(4).l2_energy(true).normalize(true);
    HsaAttention grouped(HsaAttentionOptions(options).key_heads(2)), full(options);
    torch::NoGradGuard no_grad;
    const auto from = grouped->named_parameters();
    for (auto& item : full->named_parameters()) {
      const Tensor& weight = from[item.key()];
      const bool repeat = item.key() == "key.weight" || item.key() == "value.weight";
      item.value().copy_(repeat ? weight.view({2, 4, 16}).repeat_interleave(2, 0).reshape({16, 16}) : weight);
    }
    const Tensor x = torch::randn({1, 30, 16});
    std::vector<Tensor> trees;
    if (!streaming) {
      Tree tree;
      ASSERT_TRUE(balanced_tree(30, 4, Domain::kSequence, &tree).ok());
      trees.push_back(encode_tree(tree));
    }
    EXPECT_LT((grouped->forward(x, trees) - full->forward(x, trees)).abs().max().item<double>(), 1e-5);
  }
  EXPECT_THROW(HsaAttention(HsaAttentionOptions(16, 4).key_heads(3)), c10::Error);
}

TEST(ModernBlock, RefusesWhatDoesNotFit) {
  auto refusal = [](ModelConfig config) -> std::string {
    try {
      SequenceModel model(config, text_shape(16));
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  auto expect = [&](const ModelConfig& config, const std::string& words) {
    EXPECT_NE(refusal(config).find(words), std::string::npos) << refusal(config);
  };
  for (const char* attention : {"flat", "hkt", "hsa", "strata"})
    expect(modern_config(attention, 3), "key_heads: expected a divisor of heads = 4, got 3");
  ModelConfig config = modern_config("hkt", 0);
  config.psd = true;
  expect(config, "psd: expected positions that are not rotary");
  config.positions = "learned";
  EXPECT_EQ(refusal(config), "");
  config.key_heads = 2;
  expect(config, "psd: expected key_heads = heads");
}

class ModernFiles : public WithCache {};

TEST_F(ModernFiles, CardsKeepTheBlockAndOldCardsAreClassic) {
  RunConfig run = tiny_config("hkt");
  run.model.block = "modern";
  run.model.key_heads = 1;
  const TaskData data = load_task(run.data);
  const ModelCard card = make_card(run, data);
  EXPECT_EQ(card.config.positions, "rotary") << "a card says what auto means";
  const fs::path folder = fresh_folder("modern");
  fs::create_directories(folder);
  SequenceModel model = make_model(card);
  save_model(folder / "m.safetensors", model, card);
  LoadedModel loaded = load_model(folder / "m.safetensors");
  EXPECT_EQ(loaded.card.to_json(), card.to_json());
  for (const auto& item : model->named_parameters())
    EXPECT_TRUE(torch::equal(item.value(), loaded.model->named_parameters()[item.key()])) << item.key();
  // A card of an earlier version knows neither block nor key heads, and names its positions.
  Json old = make_card(tiny_config("hkt"), data).to_json();
  for (const char* key : {"block", "key_heads"}) old["config"].erase(key);
  EXPECT_EQ(old["config"]["positions"], "learned");
  const ModelCard read = ModelCard::from_json(old, "old");
  EXPECT_EQ(read.config.block, "classic");
  EXPECT_EQ(read.to_json(), make_card(tiny_config("hkt"), data).to_json());
}

}  // namespace
}  // namespace strata
