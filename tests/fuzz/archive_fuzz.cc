// libFuzzer target: an archive is refused and leaves nothing, or becomes a set whose files are all there. The first
// byte selects the set, and whether the input is the archive itself or its files: "@@ NAME" begins each, and may go on
// with tabs, the type of the entry and the size that its header claims. From those a tar archive is made with the right
// checksums, which mutations would hardly find.
#include <cstring>

#include "data/cache.h"
#include "data/download.h"
#include "refusal.h"

namespace {

using strata::fuzz::require;

struct Header {
  char name[100], mode[8], owner[8], group[8], size[12], time[12], checksum[8], type, link[100], magic[8], rest[247];
};
static_assert(sizeof(Header) == 512);

std::string tar_of(const strata::fuzz::Files& input) {
  std::string tar;
  for (const auto& [line, content] : input.files) {
    const size_t tab = std::min(line.find('\t'), line.size()), second = std::min(line.find('\t', tab + 1), line.size());
    Header header = {};
    std::memcpy(header.name, line.data(), std::min(tab, sizeof(header.name)));
    std::snprintf(header.mode, sizeof(header.mode), "0000644");
    const std::string claimed = second < line.size() ? line.substr(second + 1) : "";
    const unsigned long long bytes = claimed.empty() ? content.size() : std::strtoull(claimed.c_str(), nullptr, 10);
    std::snprintf(header.size, sizeof(header.size), "%011llo", bytes & 077777777777ULL);
    std::snprintf(header.time, sizeof(header.time), "00000000000");
    std::memcpy(header.magic, "ustar\00000", sizeof(header.magic));
    header.type = tab + 1 < line.size() && tab + 1 < second ? line[tab + 1] : '0';
    std::memset(header.checksum, ' ', sizeof(header.checksum));
    unsigned sum = 0;
    for (size_t i = 0; i < sizeof(header); ++i) sum += reinterpret_cast<const unsigned char*>(&header)[i];
    std::snprintf(header.checksum, sizeof(header.checksum), "%06o", sum);
    tar.append(reinterpret_cast<const char*>(&header), sizeof(header));
    tar += content;
    tar.resize((tar.size() + 511) / 512 * 512);
  }
  return tar + std::string(1024, '\0');
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;
  if (size == 0) return 0;
  static const fs::path folder = fuzz::memory_folder("cache"), set = folder / "set";
  const std::string_view input(reinterpret_cast<const char*>(data + 1), size - 1);
  const bool imdb = data[0] % 2 == 0, made = (data[0] & 2) == 0;
  const std::string archive = fuzz::memory_file(made ? tar_of(fuzz::Files(input)) : std::string(input));
  const bool accepted = fuzz::accepts([&] {
    unpack_set({imdb ? "imdb" : "cifar10", "http://example.org/x", "none"}, archive, set);
  });
  require(fs::exists(set) == accepted, "a set where the archive is accepted");
  for (const auto& entry : fs::directory_iterator(folder)) require(entry.path() == set, "nothing beside the set");
  if (!accepted) return 0;
  const SetState state = check_set(set, /*read_files=*/true);
  require(state.present && state.problems.empty(), "a whole set");
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(set)) files += entry.is_regular_file() ? 1 : 0;
  require(files == (imdb ? 3 : 7), "the files of the set and its manifest");
  fs::remove_all(set);
  return 0;
}
