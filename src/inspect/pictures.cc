#include "inspect/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "inspect/hkt_run.h"
#include "inspect/inspect_stream.h"
#include "inspect/inspect_tree.h"

namespace strata {
namespace {

// Four significant digits are enough for a picture, and make the file three times smaller.
Json rounded(double value) {
  if (!std::isfinite(value)) return {};
  return std::strtod(fmt::format("{:.4g}", value).c_str(), nullptr);
}

// Entries above the diagonal of a causal matrix are masked.
Json picture(const Matrix& matrix, int64_t side, bool causal, bool sum_keys) {
  const int64_t T = matrix.rows(), block = picture_block(T, side);
  Json rows = Json::array();
  for (int64_t i = 0; i < T; i += block) {
    Json row = Json::array();
    const int64_t queries = std::min(block, T - i);
    for (int64_t j = 0; j < T; j += block) {
      double sum = 0, count = 0;
      for (int64_t a = i; a < i + queries; ++a) {
        for (int64_t b = j; b < std::min({j + block, T, causal ? a + 1 : T}); ++b) {
          sum += matrix(a, b);
          ++count;
        }
      }
      row.push_back(count == 0 ? Json() : rounded(sum / (sum_keys ? static_cast<double>(queries) : count)));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Matrix softmax_rows(const LevelScores& scores) {
  Matrix attention = scores.mixed();
  for (Eigen::Index i = 0; i < attention.rows(); ++i) {
    auto row = attention.row(i).head(scores.keys(i));
    row = (row.array() - row.maxCoeff()).exp().matrix().eval();
    row /= row.sum();
  }
  return attention;
}

}  // namespace

int64_t picture_side(int64_t pictures) {
  constexpr double kNumbers = 200000;
  const double side = std::sqrt(kNumbers / (1.0 + 4.0 / 3.0) / static_cast<double>(std::max<int64_t>(pictures, 1)));
  return std::clamp<int64_t>(static_cast<int64_t>(side), 8, 64);
}

Json hkt_pictures(HktAttentionImpl& layer, const torch::Tensor& input, int64_t side) {
  const HktRun run(layer, input);
  const bool causal = layer.options.causal();
  Json heads = Json::array();
  for (int64_t h = 0; h < layer.options.heads(); ++h) {
    const LevelScores scores = run.head(h).scores;
    Json levels = Json::array();
    for (const Matrix& level : scores.levels)  // each half as large as the one before
      levels.push_back(picture(level, std::max<int64_t>(1, side >> levels.size()), causal, false));
    heads.push_back({{"attention", picture(softmax_rows(scores), side, causal, true)}, {"levels", levels}});
  }
  return heads;
}

namespace {

Json attention_pictures(const std::vector<Matrix>& attentions, int64_t side, bool causal) {
  Json heads = Json::array();
  for (const Matrix& attention : attentions)
    heads.push_back({{"attention", picture(attention, side, causal, true)}, {"levels", Json::array()}});
  return heads;
}

}  // namespace

Json tree_pictures(torch::nn::Module& layer, const torch::Tensor& input, const Tree& tree, int64_t side) {
  return attention_pictures(tree_attention_matrices(layer, input, tree), side, false);
}

Json stream_pictures(torch::nn::Module& layer, const torch::Tensor& input, int64_t side) {
  return attention_pictures(stream_attention_matrices(layer, input), side, !stream_form(layer).both_sides);
}

}  // namespace strata
