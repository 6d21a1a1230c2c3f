// Batches, prepared in advance by a separate thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "data/augment.h"
#include "data/dataset.h"
#include "data/trees.h"

namespace strata {

struct Batch {
  int64_t rows = 0, width = 0;   // width: the longest row
  std::vector<int64_t> tokens;   // rows x width, padded with 0
  std::vector<int64_t> lengths;  // real tokens of each row
  std::vector<int64_t> targets;  // a class per row, or the next token of each token (-1 where there is none)
  std::vector<int32_t> labels;   // of the rows, also where they are no targets
  std::vector<std::shared_ptr<const Tree>> trees;  // one per row, if trees were requested
  int64_t real_tokens = 0;
  // Of the whole batch, of which these rows may be a part.
  int64_t first_row = 0;    // the place of the first of these rows in the order
  int64_t all_targets = 0;  // that count
  int64_t all_real_tokens = 0;
};

struct LoaderOptions {
  int64_t batch = 64;
  Goal goal = Goal::kClassify;
  std::shared_ptr<TreeMaker> trees;  // none: no trees
  std::vector<int64_t> order;        // of the rows; empty: the order of the data set
  int64_t first_batch = 0;           // the batches before are skipped
  int64_t every = 1;                 // of the batches from there on, every n-th
  int64_t part = 0, parts = 1;       // of each batch, this part of its rows
  Augment augment;                   // of training rows
};

Batch make_batch(const Dataset& data, const LoaderOptions& options, int64_t index);

// Gives the batches of one pass over a split, in order. `data` must outlive it.
class Loader {
 public:
  Loader(const Dataset& data, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  bool next(Batch& batch);  // false at the end of the pass; rethrows errors from the thread
  static int64_t batches(const Dataset& data, int64_t batch) { return (data.size() + batch - 1) / batch; }

 private:
  void work();

  const Dataset& data_;
  LoaderOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> ready_;
  std::exception_ptr failure_;
  bool finished_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace strata
