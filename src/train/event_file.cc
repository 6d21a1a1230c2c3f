#include "train/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>

#include "util/error.h"

namespace strata {
namespace {

// Fields of a protocol buffer: a key of number and wire type, then the value.
constexpr int kVarint = 0, kDouble = 1, kBytes = 2, kFloat = 5;

void put_varint(std::string& to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>(value | 0x80);
  to += static_cast<char>(value);
}
void put_key(std::string& to, int field, int type) { put_varint(to, static_cast<uint64_t>(field << 3 | type)); }
template <class Bits>
void put_bits(std::string& to, Bits bits) {
  for (size_t byte = 0; byte < sizeof(Bits); ++byte) to += static_cast<char>(bits >> (8 * byte));
}
void put_bytes(std::string& to, int field, const std::string& bytes) {
  put_key(to, field, kBytes);
  put_varint(to, bytes.size());
  to += bytes;
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string event_head(int64_t step) {
  std::string event;
  put_key(event, 1, kDouble);  // Event.wall_time
  put_bits(event, std::bit_cast<uint64_t>(now()));
  put_key(event, 2, kVarint);  // Event.step
  put_varint(event, static_cast<uint64_t>(step));
  return event;
}

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t crc = byte;
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0);
      made[byte] = crc;
    }
    return made;
  }();
  uint32_t crc = 0xffffffffU;
  for (const char c : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return crc ^ 0xffffffffU;
}

EventFile::EventFile(const fs::path& folder) {
  make_folder(folder);
  const auto name = fmt::format("events.out.tfevents.{}.strata.{}", static_cast<int64_t>(now()), getpid());
  out_ = std::make_unique<AppendFile>(folder / name, AppendFile::Make::kIfMissing);
  std::string event = event_head(0);
  put_bytes(event, 3, "brain.Event:2");  // Event.file_version
  write_record(event);
}

// A record: its length, the masked checksum of the length, the event, the masked checksum of the event.
void EventFile::write_record(const std::string& event) {
  std::string length, record;
  put_bits(length, static_cast<uint64_t>(event.size()));
  record = length;
  put_bits(record, masked_crc(length));
  record += event;
  put_bits(record, masked_crc(event));
  out_->add(record);
}

void EventFile::add(const std::string& tag, int64_t step, double value) {
  std::string entry, summary, event = event_head(step);
  put_bytes(entry, 1, tag);   // Summary.Value.tag
  put_key(entry, 2, kFloat);  // Summary.Value.simple_value
  put_bits(entry, std::bit_cast<uint32_t>(static_cast<float>(value)));
  put_bytes(summary, 1, entry);  // Summary.value
  put_bytes(event, 5, summary);  // Event.summary
  write_record(event);
}

}  // namespace strata
