#include "train/evaluation_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace strata {

using torch::Tensor;

namespace {

// Places 0, 1, 2-3, 4-7, ..
size_t part_of_place(int64_t place) { return std::bit_width(static_cast<uint64_t>(place)); }

std::vector<std::string> place_names(const Dataset& data) {
  int64_t longest = 1;
  for (const Dataset::Row& row : data.rows) longest = std::max<int64_t>(longest, row.length - 1);
  std::vector<std::string> names = {"0"};
  for (int64_t from = 1; from < longest; from *= 2)
    names.push_back(from == 1 ? "1" : fmt::format("{}-{}", from, std::min(2 * from, longest) - 1));
  return names;
}

}  // namespace

EvaluationParts::EvaluationParts(const Dataset& data, const std::vector<std::string>& labels, int64_t batches)
    : by_row_(data.answers > 0),
      names_(by_row_ ? labels : place_names(data)),
      sums_(torch::zeros({batches, static_cast<int64_t>(names_.size()), 3}, torch::kDouble)) {}

void EvaluationParts::add(int64_t index, const Tensor& outputs, const Batch& batch) {
  const Tensor targets = torch::tensor(batch.targets, torch::kLong).to(outputs.device()).view({-1, 1});
  const Tensor log_p = torch::log_softmax(outputs.reshape({targets.size(0), -1}).to(torch::kFloat), -1);
  const Tensor losses = -log_p.gather(1, targets.clamp_min(0)).to(torch::kCPU, torch::kDouble).contiguous();
  const Tensor correct = log_p.argmax(-1, true).eq(targets).to(torch::kCPU, torch::kDouble).contiguous();
  auto sum = sums_.accessor<double, 3>()[index];
  for (int64_t row = 0; row < batch.rows; ++row) {
    for (int64_t place = 0; place < batch.width; ++place) {
      const int64_t at = row * batch.width + place;
      if (batch.targets[at] < 0 || (by_row_ && place + 1 < batch.lengths[row])) continue;
      auto part = sum[static_cast<int64_t>(by_row_ ? static_cast<size_t>(batch.labels[row]) : part_of_place(place))];
      part[0] += losses.data_ptr<double>()[at];
      part[1] += correct.data_ptr<double>()[at];
      part[2] += 1;
    }
  }
}

std::vector<EvaluationPart> EvaluationParts::result() const {
  std::vector<EvaluationPart> parts;
  const auto of = sums_.accessor<double, 3>();
  for (int64_t p = 0; p < sums_.size(1); ++p) {
    double sum[3] = {};
    for (int64_t b = 0; b < sums_.size(0); ++b) {
      for (int k = 0; k < 3; ++k) sum[k] += of[b][p][k];
    }
    if (sum[2] > 0) parts.push_back({names_[p], sum[0] / sum[2], sum[1] / sum[2], static_cast<int64_t>(sum[2])});
  }
  return parts;
}

}  // namespace strata
