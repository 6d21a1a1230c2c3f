#include "inject/experiment_data.h"

#include <algorithm>
#include <sstream>

#include "data/dataset.h"
#include "data/table.h"
#include "util/error.h"
#include "util/random.h"

namespace strata {
namespace {

// `most` rows, chosen by the seed; texts that have no tokens are left out.
LabelledTexts take(const Host& host, const std::vector<TableRow>& rows, int64_t most, int64_t seed,
                   const std::string& file, Progress& progress) {
  LabelledTexts taken;
  int64_t bad = 0;
  std::string reason;  // of the first bad row
  for (const int64_t at : permutation(static_cast<int64_t>(rows.size()), static_cast<uint64_t>(seed))) {
    if (static_cast<int64_t>(taken.texts.size()) == most) break;
    HostText text;
    std::string problem = rows[at].problem;
    try {
      if (problem.empty()) text = host.read(rows[at].text);
    } catch (const Error& error) {
      problem = error.what();
    }
    if (text.tokens() == 0) {
      if (++bad == 1)
        reason = fmt::format("line {}: {}", rows[at].line, problem.empty() ? "the text has no tokens" : problem);
      continue;
    }
    taken.texts.push_back(std::move(text));
    taken.labels.push_back(rows[at].label);
  }
  if (taken.texts.empty())
    throw data_error("{}: expected rows with texts, got none{}", file,
                     bad > 0 ? fmt::format("; {} rows are unusable, for example {}", bad, reason) : "");
  if (bad > 0)
    progress.note(
        fmt::format("warning: {}: {} rows could not be read and were left out, for example {}", file, bad, reason));
  return taken;
}

std::vector<TableRow> lines_of(const std::string& file) {
  std::istringstream content(read_file(file));
  std::vector<TableRow> lines;
  int64_t number = 0;
  for (std::string line; std::getline(content, line);) {
    ++number;
    if (!line.empty()) lines.push_back({number, "", line, ""});
  }
  return lines;
}

}  // namespace

ExperimentData read_experiment_data(const Host& host, const InjectOptions& o, Progress& progress) {
  auto labelled = [&](const std::string& file, int64_t most) {
    if (file.empty()) return LabelledTexts();
    return take(host,
                read_table(read_file(file), table_format(file), o.label_column, o.text_column,
                           fs::path(file).filename().string()),
                most, o.seed, file, progress);
  };
  ExperimentData data{labelled(o.train, o.train_rows), labelled(o.test, o.test_rows), {}};
  if (!o.texts.empty()) {
    data.unlabelled = take(host, lines_of(o.texts), o.text_rows, o.seed, o.texts, progress).texts;
  } else {
    const std::vector<HostText>& from = data.train.texts.empty() ? data.test.texts : data.train.texts;
    data.unlabelled.assign(from.begin(),
                           from.begin() + std::min<int64_t>(o.text_rows, static_cast<int64_t>(from.size())));
  }
  if (data.unlabelled.empty()) throw usage_error("no texts: expected --texts, --test or --train");
  return data;
}

}  // namespace strata
