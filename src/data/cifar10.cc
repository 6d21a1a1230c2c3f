// CIFAR-10 (Krizhevsky 2009) as sequences of 1,024 grey pixels, or of 256 or 64 means of blocks: the official binary
// batches, or files of grey rows.
#include "data/cifar10.h"

#include <functional>
#include <map>

#include "data/cache.h"
#include "data/task.h"
#include "util/error.h"

namespace strata {
namespace {

constexpr size_t kPixels = kCifarSide * kCifarSide;

// Luma after ITU-R BT.601, in integers so that it is the same everywhere.
char grey(uint8_t red, uint8_t green, uint8_t blue) {
  return static_cast<char>((299 * red + 587 * green + 114 * blue + 500) / 1000);
}

// Rows of a label byte and either 1,024 grey pixels, or 1,024 red, 1,024 green and 1,024 blue ones.
void read_rows(const std::string& bytes, const std::string& name, bool colour, Dataset& data) {
  const size_t row_size = 1 + (colour ? 3 : 1) * kPixels;
  std::string pixels(kPixels, '\0');
  for (size_t at = 0; at + row_size <= bytes.size(); at += row_size) {
    const auto label = static_cast<uint8_t>(bytes[at]);
    if (label >= cifar10_classes().size()) {
      data.add_problem(fmt::format("{} row {}: expected a label of 0 to 9, got {}", name, at / row_size + 1, label));
      continue;
    }
    const auto* plane = reinterpret_cast<const uint8_t*>(bytes.data()) + at + 1;
    for (size_t p = 0; p < kPixels; ++p) {
      pixels[p] = colour ? grey(plane[p], plane[p + kPixels], plane[p + 2 * kPixels]) : static_cast<char>(plane[p]);
    }
    data.add_row(byte_tokens(pixels), label, kPixels);
  }
  if (bytes.size() % row_size != 0) {
    data.add_problem(
        fmt::format("{}: the last row is incomplete ({} bytes, expected {})", name, bytes.size() % row_size, row_size));
  }
}

}  // namespace

const std::vector<std::string>& cifar10_classes() {
  static const std::vector<std::string> classes = {"airplane", "automobile", "bird",  "cat",  "deer",
                                                   "dog",      "frog",       "horse", "ship", "truck"};
  return classes;
}

int64_t cifar10_side(int64_t pixels) {
  for (const int64_t side : {32, 16, 8}) {
    if (pixels == side * side) return side;
  }
  return 0;
}

std::vector<Token> shrink_image(std::span<const Token> pixels, int64_t side) {
  const int64_t block = kCifarSide / side;
  std::vector<Token> small;
  for (int64_t y = 0; y < side; ++y) {
    for (int64_t x = 0; x < side; ++x) {
      int64_t sum = block * block / 2;
      for (int64_t i = 0; i < block * block; ++i)
        sum += pixels[(y * block + i / block) * kCifarSide + x * block + i % block] - 1;
      small.push_back(static_cast<Token>(1 + sum / (block * block)));
    }
  }
  return small;
}

TaskData read_cifar10(const std::string& path) {
  const fs::path folder = path.empty() ? cache_folder() / "cifar10" : fs::path(path);
  if (!fs::is_directory(folder)) {
    throw data_error(
        "{}: expected a folder with CIFAR-10; download it with `strata data get cifar10`, or pass a copy with --data",
        folder.string());
  }
  TaskData data;
  data.vocabulary = kByteVocabulary;
  data.labels = cifar10_classes();
  std::map<size_t, std::string> seen;  // names by hashes of the contents
  auto read = [&](const fs::path& path, bool colour, Dataset& split) {
    data.files.push_back(path);
    const std::string bytes = read_file(path), name = path.filename().string();
    const auto [same, is_new] = seen.emplace(std::hash<std::string_view>()(bytes), name);
    if (!is_new)
      throw data_error("{}: expected different batches, got the same bytes in {} and {}; was one copied over another?",
                       folder.string(), same->second, name);
    read_rows(bytes, name, colour, split);
  };
  if (const fs::path train = find_split(folder, "train", {".bin"}); !train.empty()) {
    const fs::path test = find_split(folder, "test", {".bin"});
    if (test.empty()) throw data_error("{}: expected test.bin beside train.bin, found none", folder.string());
    read(train, false, data.train);
    read(test, false, data.test);
    return data;
  }
  for (int batch = 1; batch <= 5; ++batch) read(folder / fmt::format("data_batch_{}.bin", batch), true, data.train);
  read(folder / "test_batch.bin", true, data.test);
  return data;
}

TaskData load_cifar10(const DataConfig& config) {
  const int64_t side = cifar10_side(config.length);
  if (side == 0)
    throw usage_error("length: expected 1024, 256 or 64, an image of 32, 16 or 8 pixels a side, got {}", config.length);
  TaskData data = read_cifar10(config.data);
  for (Dataset* split : {&data.train, &data.test}) {
    if (side == kCifarSide) break;
    Dataset small;
    small.bad = split->bad;
    small.problems = split->problems;
    for (int64_t row = 0; row < split->size(); ++row)
      small.add_row(shrink_image(split->row(row), side), split->rows[row].label, config.length);
    *split = std::move(small);
  }
  return data;
}

}  // namespace strata
