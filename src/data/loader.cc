#include "data/loader.h"

#include <algorithm>

namespace strata {

namespace {

// The targets of a row of a language model with `length` inputs.
int64_t count_answers(const Dataset& data, int64_t length) {
  return data.answers > 0 ? std::min(data.answers, (length + data.answer_step - 1) / data.answer_step) : length;
}

}  // namespace

Batch make_batch(const Dataset& data, const LoaderOptions& options, int64_t index) {
  const int64_t begin = index * options.batch, count = std::min(options.batch, data.size() - begin);
  const int64_t first = begin + count * options.part / options.parts;
  const bool next_token = options.goal == Goal::kNextToken;
  Batch batch;
  batch.first_row = first;
  batch.rows = begin + count * (options.part + 1) / options.parts - first;
  auto number = [&](int64_t r) { return options.order.empty() ? first + r : options.order[first + r]; };
  std::vector<std::span<const Token>> rows;
  std::vector<std::vector<Token>> images(options.augment.jitter > 0 ? batch.rows : 0);
  for (int64_t r = 0; r < batch.rows; ++r) {
    const int64_t row = number(r);
    rows.push_back(data.row(row));
    if (options.augment.jitter > 0) rows.back() = images[r] = jitter_image(rows.back(), options.augment, row);
    // The last token of a window is a target only, never an input.
    batch.lengths.push_back(static_cast<int64_t>(rows.back().size()) - (next_token ? 1 : 0));
    batch.labels.push_back(data.rows[row].label);
    if (!next_token) batch.targets.push_back(batch.labels.back());
    batch.width = std::max(batch.width, batch.lengths.back());
    batch.real_tokens += batch.lengths.back();
  }
  batch.tokens.assign(static_cast<size_t>(batch.rows * batch.width), kPad);
  if (next_token) batch.targets.assign(batch.tokens.size(), -1);
  for (int64_t r = 0; r < batch.rows; ++r) {
    const int64_t length = batch.lengths[r];
    int64_t* tokens = batch.tokens.data() + r * batch.width;
    std::copy_n(rows[r].begin(), length, tokens);
    if (next_token) {
      const int64_t step = data.answers > 0 ? data.answer_step : 1;
      for (int64_t answer = 0; answer < count_answers(data, length); ++answer) {
        const int64_t at = length - 1 - answer * step;
        batch.targets[r * batch.width + at] = rows[r][at + 1];
      }
    }
    if (options.trees != nullptr) {
      batch.trees.push_back(options.trees->tree(rows[r].first(static_cast<size_t>(length))));
      const std::vector<int64_t> order = options.trees->order(rows[r].first(static_cast<size_t>(length)));
      for (size_t t = 0; t < order.size(); ++t) tokens[t] = rows[r][order[t]];
    }
    if (options.augment.hide > 0) hide_tokens({tokens, static_cast<size_t>(length)}, options.augment, number(r));
  }
  for (int64_t place = begin; place < begin + count; ++place) {
    const auto tokens = static_cast<int64_t>(data.row(number(place - first)).size()) - (next_token ? 1 : 0);
    batch.all_real_tokens += tokens;
    batch.all_targets += next_token ? count_answers(data, tokens) : 1;
  }
  return batch;
}

Loader::Loader(const Dataset& data, LoaderOptions options) : data_(data), options_(std::move(options)) {
  thread_ = std::thread([this] { work(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Loader::work() {
  constexpr size_t kAhead = 4;
  try {
    for (int64_t index = options_.first_batch; index < batches(data_, options_.batch); index += options_.every) {
      Batch batch = make_batch(data_, options_, index);
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || ready_.size() < kAhead; });
      if (stop_) return;
      ready_.push_back(std::move(batch));
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  finished_ = true;
  changed_.notify_all();
}

bool Loader::next(Batch& batch) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || finished_; });
  if (ready_.empty()) {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    return false;
  }
  batch = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return true;
}

}  // namespace strata
