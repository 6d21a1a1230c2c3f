#include "train/peer_watch.h"

#include <fmt/format.h>

#include <cstdio>
#include <future>
#include <memory>
#include <vector>

#include "util/sha256.h"

namespace strata {
namespace {

using Clock = std::chrono::steady_clock;
constexpr Milliseconds kBeat(1000), kPoll(50);
constexpr Milliseconds kSilence(2500);  // without a beat: this rank does not answer

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

struct Beat {
  long number = -1, collectives = -1;
};

Beat read_beat(c10d::Store& store, int64_t rank) {
  Beat beat;
  const std::string text = peek_text(store, fmt::format("beat/{}", rank));
  if (std::sscanf(text.c_str(), "%ld %ld", &beat.number, &beat.collectives) != 2) return {};
  return beat;
}

// "rank 2 (node3, process 1234)"
std::string name_of(c10d::Store& store, int64_t rank) {
  return fmt::format("rank {} ({})", rank, peek_text(store, fmt::format("who/{}", rank)));
}

// The message of a rank, which others may have as well.
std::string without_rank(const std::string& text) {
  const size_t digits = text.rfind("rank ", 0) == 0 ? text.find_first_not_of("0123456789", 5) : std::string::npos;
  return digits != std::string::npos && text.compare(digits, 2, ": ") == 0 ? text.substr(digits + 2) : text;
}

std::string find_missing(c10d::Store& store, int64_t rank, int64_t size, const std::string& otherwise) {
  std::vector<Beat> before(static_cast<size_t>(size)), now(before.size());
  for (int64_t r = 0; r < size; ++r) before[r] = read_beat(store, r);
  const auto end = Clock::now() + kSilence;
  while (Clock::now() < end) {
    const std::string said = peek_text(store, kFailureKey);
    if (!said.empty()) return said;
    std::this_thread::sleep_for(kPoll);
  }
  for (int64_t r = 0; r < size; ++r) now[r] = read_beat(store, r);
  for (int64_t r = 0; r < size; ++r) {
    if (now[r].number < 0)
      return fmt::format("rank {} never came: it was not started, failed at its start, or does not reach the store", r);
    if (r != rank && now[r].number == before[r].number)
      return fmt::format("{} does not answer: it was killed, hangs or lost its network", name_of(store, r));
  }
  for (int64_t r = 0; r < size; ++r) {
    if (r != rank && now[r].collectives < now[rank].collectives)
      return fmt::format("{} lives, but did not reach collective {}, at which others wait, in time", name_of(store, r),
                         now[rank].collectives);
  }
  return otherwise;
}

}  // namespace

void put_text(c10d::Store& store, const std::string& key, const std::string& text) { store.set(key, bytes_of(text)); }

std::string get_text(c10d::Store& store, const std::string& key) { return text_of(store.get(key)); }

std::string peek_text(c10d::Store& store, const std::string& key) {
  return store.check({key}) ? text_of(store.get(key)) : "";
}

std::string put_first_text(c10d::Store& store, const std::string& key, const std::string& text) {
  return text_of(store.compareSet(key, {}, bytes_of(text)));
}

bool say_failure(c10d::Store& store, const std::string& text) {
  put_first_text(store, kFailureKey, text);
  return store.add("said/" + sha256_of(without_rank(text)), 1) == 1;
}

PeerWatch::PeerWatch(StoreAddress address, int64_t rank, int64_t size, const std::string& who)
    : address_(std::move(address)), rank_(rank), size_(size) {
  constexpr Milliseconds kConnect(30000);
  // A connection of its own: that of the group may be busy with a key that never comes.
  store_ = c10::make_intrusive<c10d::PrefixStore>(address_.prefix, open_store(address_, false, kConnect));
  put_text(*store_, fmt::format("who/{}", rank), who);
  thread_ = std::thread([this] { beat(); });
}

PeerWatch::~PeerWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PeerWatch::beat() {
  try {
    for (int64_t number = 0;; ++number) {
      put_text(*store_, fmt::format("beat/{}", rank_), fmt::format("{} {}", number, collectives_.load()));
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, kBeat, [&] { return stop_; })) return;
    }
  } catch (const std::exception&) {
    // The store is gone. The next collective fails, and says so.
  }
}

std::string PeerWatch::explain(const std::string& otherwise) const {
  // In a thread that may be left behind: a store whose process was stopped never answers.
  auto promise = std::make_shared<std::promise<std::string>>();
  std::future<std::string> answer = promise->get_future();
  std::thread([promise, otherwise, address = address_, rank = rank_, size = size_] {
    try {
      const auto store =
          c10::make_intrusive<c10d::PrefixStore>(address.prefix, open_store(address, false, Milliseconds(3000)));
      const std::string text = find_missing(*store, rank, size, otherwise);
      promise->set_value(put_first_text(*store, kFailureKey, text));
    } catch (const std::exception&) {
      promise->set_value("");
    }
  }).detach();
  const bool in_time = answer.wait_for(std::chrono::duration<double>(kSeconds)) == std::future_status::ready;
  return in_time ? answer.get() : "";
}

}  // namespace strata
