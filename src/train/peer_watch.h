// Which rank is missing: every rank tells the store once a second that it lives, and how many collectives it has begun.
// When a collective fails, the others read who stopped doing so. c10d's own errors name no rank.
#pragma once

#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "torch/compat_c10d.h"

namespace strata {

// What a call of a store returns or throws. A store whose process was stopped never answers, so the call is made in a
// thread of its own, which is left behind after `patience`: this function throws then. The call owns all that it uses.
template <class Call>
auto ask(Milliseconds patience, Call call) -> decltype(call()) {
  auto task = std::make_shared<std::packaged_task<decltype(call())()>>(std::move(call));
  auto answer = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  if (answer.wait_for(patience) != std::future_status::ready) throw std::runtime_error("the store does not answer");
  return answer.get();
}

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
  PeerWatch(const StoreAddress& address, int64_t rank, const std::string& who);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  void count_collective();

 private:
  struct Pulse;  // outlives this object where the store does not answer
  std::shared_ptr<Pulse> pulse_;
  std::future<void> ended_;
};

// Why a collective failed: the text of a rank that said why it stops, or one that names the rank that does not answer;
// `otherwise`, if no rank is found; "" if the store does not answer. Leaves the text in the store.
inline constexpr Milliseconds kExplainTime(8000);  // takes no longer
std::string explain_loss(const StoreAddress& address, int64_t rank, int64_t size, const std::string& otherwise);

}  // namespace strata
