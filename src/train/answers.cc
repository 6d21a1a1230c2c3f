#include "train/answers.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/task.h"
#include "util/text.h"

namespace strata {
namespace {

constexpr size_t kMostClasses = 64;  // in a confusion matrix
constexpr size_t kWorst = 10;

Json ratio(int64_t part, int64_t whole) {
  return whole == 0 ? Json() : Json(static_cast<double>(part) / static_cast<double>(whole));
}

// The words or the bytes of a row, cut; of an image, only its caption.
std::string row_text(const TaskData& data, std::span<const Token> tokens) {
  constexpr size_t kMostBytes = 400;
  if (find_task(data.task).has_images)
    tokens = {std::find_if(tokens.begin(), tokens.end(), [](Token token) { return token >= kByteVocabulary; }),
              tokens.end()};
  std::string text;
  if (data.task == "listops" || data.task == "captions" || !data.words.empty()) {
    text = fmt::format("{}", fmt::join(show_tokens(data.task, tokens, data.words), " "));
  } else {
    for (const Token token : tokens) text += static_cast<char>(token - 1);
  }
  return shown(text, kMostBytes);
}

Json describe_classes(const std::vector<Answer>& answers, const std::vector<std::string>& labels) {
  struct Counts {
    int64_t rows = 0, predicted = 0, right = 0;
  };
  std::vector<Counts> counts(labels.size());
  for (const Answer& answer : answers) {
    ++counts[answer.label].rows;
    ++counts[answer.predicted].predicted;
    counts[answer.label].right += answer.label == answer.predicted;
  }
  Json classes = Json::array();
  for (size_t c = 0; c < labels.size(); ++c) {
    const auto [rows, predicted, right] = counts[c];
    classes.push_back({{"label", labels[c]},
                       {"rows", rows},
                       {"predicted", predicted},
                       {"precision", ratio(right, predicted)},
                       {"recall", ratio(right, rows)},
                       {"f1", ratio(2 * right, rows + predicted)}});
  }
  return classes;
}

std::vector<std::vector<int64_t>> confusion_of(const std::vector<Answer>& answers, size_t classes) {
  std::vector<std::vector<int64_t>> confusion(classes, std::vector<int64_t>(classes, 0));
  for (const Answer& answer : answers) ++confusion[answer.label][answer.predicted];
  return confusion;
}

Json worst_errors(const std::vector<Answer>& answers, const TaskData& data, const Dataset& split) {
  std::vector<size_t> wrong;
  for (size_t row = 0; row < answers.size(); ++row) {
    if (answers[row].label != answers[row].predicted) wrong.push_back(row);
  }
  const size_t shown = std::min(wrong.size(), kWorst);
  std::partial_sort(wrong.begin(), wrong.begin() + static_cast<std::ptrdiff_t>(shown), wrong.end(),
                    [&](size_t a, size_t b) {
                      return answers[a].loss != answers[b].loss ? answers[a].loss > answers[b].loss : a < b;
                    });
  wrong.resize(shown);
  Json worst = Json::array();
  for (const size_t row : wrong) {
    const Answer& answer = answers[row];
    worst.push_back({{"row", row},
                     {"label", data.labels[answer.label]},
                     {"predicted", data.labels[answer.predicted]},
                     {"probability", answer.probability},
                     {"loss", answer.loss}});
    const std::string text = row_text(data, split.row(static_cast<int64_t>(row)));
    if (!text.empty()) worst.back()["text"] = text;
  }
  return worst;
}

}  // namespace

Json describe_answers(const std::vector<Answer>& answers, const TaskData& data, const Dataset& split) {
  Json described = {{"classes", describe_classes(answers, data.labels)}};
  if (data.labels.size() <= kMostClasses) described["confusion"] = confusion_of(answers, data.labels.size());
  described["worst"] = worst_errors(answers, data, split);
  return described;
}

std::string class_table(const Json& described) {
  constexpr size_t kMostShown = 20;
  std::vector<Json> classes = described.at("classes");
  const size_t all = classes.size();
  if (all > kMostShown) {
    auto f1 = [](const Json& one) { return one.at("f1").is_number() ? one.at("f1").get<double>() : 1.0; };
    std::stable_sort(classes.begin(), classes.end(), [&](const Json& a, const Json& b) { return f1(a) < f1(b); });
    classes.resize(kMostShown);
  }
  auto percent = [](const Json& value) {
    return value.is_number() ? fmt::format("{:.2f}", 100 * value.get<double>()) : "-";
  };
  std::string text =
      fmt::format("{:<20} {:>8} {:>11} {:>9} {:>9}\n", "class", "rows", "precision %", "recall %", "F1 %");
  for (const Json& one : classes) {
    text += fmt::format("{:<20} {:>8} {:>11} {:>9} {:>9}\n", shown(one.at("label").get<std::string>()),
                        one.at("rows").get<int64_t>(), percent(one.at("precision")), percent(one.at("recall")),
                        percent(one.at("f1")));
  }
  if (all > kMostShown)
    text += fmt::format("the {} classes of {} with the lowest F1; --json prints all\n", kMostShown, all);
  return text;
}

}  // namespace strata
