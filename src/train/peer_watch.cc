#include "train/peer_watch.h"

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <vector>

#include "util/sha256.h"

namespace strata {
namespace {

using Clock = std::chrono::steady_clock;
constexpr Milliseconds kBeat(1000), kPoll(50);
constexpr Milliseconds kSilence(2500);  // without a beat: this rank does not answer
constexpr Milliseconds kFarewell(2000);

c10::intrusive_ptr<c10d::Store> open_prefixed(const StoreAddress& address, Milliseconds timeout) {
  return c10::make_intrusive<c10d::PrefixStore>(address.prefix, open_store(address, false, timeout));
}

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

struct PeerWatch::Pulse {
  void run() {
    try {
      for (int64_t number = 0;; ++number) {
        put_text(*store, fmt::format("beat/{}", rank), fmt::format("{} {}", number, collectives.load()));
        std::unique_lock lock(mutex);
        if (changed.wait_for(lock, kBeat, [&] { return stop; })) return;
      }
    } catch (const std::exception&) {
      // The store is gone. The next collective fails, and says so.
    }
  }

  // A connection of its own: that of the group may be busy with a key that never comes.
  c10::intrusive_ptr<c10d::Store> store;
  int64_t rank = 0;
  std::atomic<int64_t> collectives = 0;
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
};

PeerWatch::PeerWatch(const StoreAddress& address, int64_t rank, const std::string& who)
    : pulse_(std::make_shared<Pulse>()) {
  constexpr Milliseconds kConnect(30000);
  pulse_->rank = rank;
  pulse_->store = ask(kConnect, [=] {
    const auto store = open_prefixed(address, kConnect);
    put_text(*store, fmt::format("who/{}", rank), who);
    return store;
  });
  std::packaged_task<void()> beat([pulse = pulse_] { pulse->run(); });
  ended_ = beat.get_future();
  std::thread(std::move(beat)).detach();
}

PeerWatch::~PeerWatch() {
  {
    const std::lock_guard lock(pulse_->mutex);
    pulse_->stop = true;
  }
  pulse_->changed.notify_all();
  ended_.wait_for(kFarewell);
}

void PeerWatch::count_collective() { ++pulse_->collectives; }

std::string explain_loss(const StoreAddress& address, int64_t rank, int64_t size, const std::string& otherwise) {
  try {
    return ask(kExplainTime, [=] {
      const auto store = open_prefixed(address, Milliseconds(3000));
      return put_first_text(*store, kFailureKey, find_missing(*store, rank, size, otherwise));
    });
  } catch (const std::exception&) {
    return "";
  }
}

}  // namespace strata
