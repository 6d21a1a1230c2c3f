// IMDB reviews (Maas et al. 2011) as bytes: the official folder, or a file per split of rows "label, rating, id, text".
// The rating reveals the label and is never read.
#include <algorithm>

#include "data/cache.h"
#include "data/task.h"
#include "util/error.h"
#include "util/lines.h"
#include "util/text.h"

namespace strata {
namespace {

// Split on the first three tabs only: some texts hold tabs.
Dataset read_rows(const std::string& text, const std::string& name, int64_t length) {
  Dataset data;
  for_each_line(text, [&](std::string_view line, int64_t number) {
    size_t tab = 0;
    size_t begin = 0;
    for (int column = 0; column < 3; ++column) {
      tab = line.find('\t', begin);
      if (tab == std::string_view::npos) {
        return data.add_problem(
            fmt::format("{} line {}: expected label, rating, id and text, separated by tabs", name, number));
      }
      begin = tab + 1;
    }
    if (line.substr(0, 2) != "0\t" && line.substr(0, 2) != "1\t") {
      return data.add_problem(fmt::format("{} line {}: expected a label of 0 or 1, got \"{}\"", name, number,
                                          shown(line.substr(0, line.find('\t')))));
    }
    if (begin == line.size()) return data.add_problem(fmt::format("{} line {}: the text is empty", name, number));
    data.add_row(byte_tokens(line.substr(begin)), line[0] - '0', length);
  });
  return data;
}

// FOLDER/pos/ID_RATING.txt and FOLDER/neg/ID_RATING.txt, in the order of their ids.
Dataset read_folder(const fs::path& folder, int64_t length) {
  Dataset data;
  std::vector<std::pair<int64_t, std::pair<int, fs::path>>> files;
  for (int label = 0; label < 2; ++label) {
    const fs::path side = folder / (label == 1 ? "pos" : "neg");
    if (!fs::is_directory(side))
      throw data_error("{}: expected this folder of the IMDB set, found none", side.string());
    for (const auto& entry : fs::directory_iterator(side)) {
      if (entry.path().extension() == ".txt")
        files.push_back({std::atoll(entry.path().stem().c_str()), {label, entry.path()}});
    }
  }
  std::sort(files.begin(), files.end());
  for (const auto& [id, file] : files) {
    const std::string text = read_file(file.second);
    if (text.empty()) {
      data.add_problem(file.second.string() + ": the text is empty");
    } else {
      data.add_row(byte_tokens(text), file.first, length);
    }
  }
  return data;
}

}  // namespace

TaskData load_imdb(const DataConfig& config) {
  const fs::path folder = config.data.empty() ? cache_folder() / "imdb" : fs::path(config.data);
  if (!fs::is_directory(folder)) {
    throw data_error(
        "{}: expected a folder with the IMDB set; download it with `strata data get imdb`, or pass a copy with --data",
        folder.string());
  }
  TaskData data;
  data.vocabulary = kByteVocabulary;
  data.labels = {"negative", "positive"};
  auto read = [&](const std::string& split) {
    if (fs::is_directory(folder / split)) {
      data.files.push_back(folder / split);
      return read_folder(folder / split, config.length);
    }
    const fs::path path = find_split(folder, split, {".tsv"});
    if (path.empty())
      throw data_error("{0}: expected {1}/ or {1}.tsv in this folder, found neither", folder.string(), split);
    data.files.push_back(path);
    return read_rows(read_file(path), path.filename().string(), config.length);
  };
  data.train = read("train");
  data.test = read("test");
  return data;
}

}  // namespace strata
