// Which rank is missing: every rank tells the store once a second that it lives, and how many collectives it has begun.
// When a collective fails, the others read who stopped doing so. c10d's own errors name no rank.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "torch/compat_c10d.h"

namespace strata {

// ---- texts in a store
void put_text(c10d::Store& store, const std::string& key, const std::string& text);
std::string get_text(c10d::Store& store, const std::string& key);   // waits for it
std::string peek_text(c10d::Store& store, const std::string& key);  // "" if there is none
// Sets the text if there is none yet. Returns what is there then.
std::string put_first_text(c10d::Store& store, const std::string& key, const std::string& text);

inline constexpr const char* kFailureKey = "failure";  // why the run cannot go on, from whoever knew first

// Leaves a text as the reason why the run ends. True for the first process that says it, with or without the words
// "rank 2: " before it: a user should read it once.
bool say_failure(c10d::Store& store, const std::string& text);

class PeerWatch {
 public:
  // Begins to tell that this rank lives. who: "node3, process 1234"
  PeerWatch(StoreAddress address, int64_t rank, int64_t size, const std::string& who);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  void count_collective() { ++collectives_; }
  // Why a collective failed: the text of a rank that said why it stops, or one that names the rank that does not
  // answer; `otherwise`, if no rank is found; "" if the store does not answer. Takes up to kSeconds, and leaves the
  // text in the store.
  std::string explain(const std::string& otherwise) const;
  static constexpr double kSeconds = 8;

 private:
  void beat();

  const StoreAddress address_;
  const int64_t rank_, size_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::atomic<int64_t> collectives_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace strata
