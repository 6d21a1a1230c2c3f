#include "data/table.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "data/task.h"
#include "util/error.h"
#include "util/json.h"
#include "util/lines.h"
#include "util/text.h"

namespace strata {
namespace {

struct Record {
  int64_t line = 0;
  std::vector<std::string> fields;
  std::string problem;
};

// Fields are separated by `separator`; a field in quotes may hold separators, line ends and doubled quotes.
std::vector<Record> split_records(const std::string& content, char separator, bool quotes) {
  std::vector<Record> records;
  int64_t line = 1;
  for (size_t at = text_begin(content); at < content.size();) {
    Record record;
    record.line = line;
    for (bool more = true; more;) {
      std::string field;
      bool closed = true;
      if (quotes && at < content.size() && content[at] == '"') {
        closed = false;
        for (++at; at < content.size(); ++at) {
          if (content[at] == '"') {
            if (at + 1 < content.size() && content[at + 1] == '"') {
              ++at;
            } else {
              closed = true;
              ++at;
              break;
            }
          }
          line += content[at] == '\n';
          field += content[at];
        }
        if (!closed) record.problem = "expected a closing quote, got the end of the file";
      }
      const size_t end = std::min(content.find_first_of(std::string{separator, '\n'}, at), content.size());
      more = end < content.size() && content[end] == separator;
      const bool windows = !more && end > at && content[end - 1] == '\r';  // a line end, not a part of a quoted field
      field.append(content, at, end - at - (windows ? 1 : 0));
      record.fields.push_back(std::move(field));
      at = end + 1;
    }
    ++line;
    if (record.fields.size() > 1 || !record.fields[0].empty()) records.push_back(std::move(record));
  }
  return records;
}

// The place of a column from its number, or from its name in the first record.
size_t find_column(const std::string& column, const std::vector<std::string>& names, const std::string& file) {
  size_t number = 0;
  const auto [end, error] = std::from_chars(column.data(), column.data() + column.size(), number);
  if (error == std::errc() && end == column.data() + column.size() && number > 0) return number - 1;
  const auto found = std::find(names.begin(), names.end(), column);
  if (found == names.end()) {
    throw data_error("{}: expected a column named {}, got {}; choose with --label-column and --text-column", file,
                     shown(column), shown_list(names));
  }
  const auto again = std::find(found + 1, names.end(), column);
  if (again != names.end()) {
    throw data_error(
        "{}: expected one column named {}, got columns {} and {} of that name; rename one, or choose by "
        "number with --label-column and --text-column",
        file, shown(column), found - names.begin() + 1, again - names.begin() + 1);
  }
  return static_cast<size_t>(found - names.begin());
}

bool is_number(const std::string& column) {
  return !column.empty() && std::all_of(column.begin(), column.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// A row without a label or a text has a problem.
void check_content(TableRow& row) {
  if (row.problem.empty() && row.label.empty()) row.problem = "the label is empty";
  if (row.problem.empty() && row.text.empty()) row.problem = "the text is empty";
  if (row.problem.empty() && !is_utf8(row.label))
    row.problem = "expected a label in UTF-8, got " + shown(row.label) + "; convert the file";
}

// How often an object has a key. The parser would take the last one without a word.
int64_t count_key(std::string_view line, const std::string& key) {
  const std::string quoted = Json(key).dump();
  const size_t first = line.find(quoted);
  // With these, a key can be written in several ways.
  const bool escapes = line.find("\\u") != std::string_view::npos || line.find("\\/") != std::string_view::npos;
  if (!escapes && (first == std::string_view::npos || line.find(quoted, first + 1) == std::string_view::npos)) return 1;
  int64_t count = 0;
  const Json::parser_callback_t note = [&](int depth, Json::parse_event_t event, Json& parsed) {
    count += event == Json::parse_event_t::key && depth == 1 && parsed == key ? 1 : 0;
    return true;
  };
  const Json object = Json::parse(line, note, /*allow_exceptions=*/false);
  return object.is_discarded() ? 0 : count;
}

std::vector<TableRow> read_json_lines(const std::string& content, const std::string& label_column,
                                      const std::string& text_column) {
  std::vector<TableRow> rows;
  for_each_line(content, [&](std::string_view line, int64_t number) {
    TableRow row;
    row.line = number;
    const Json value = parse_json<Json>(line);
    auto take = [&](const std::string& key, std::string& to) {
      if (!row.problem.empty()) return;
      if (!value.is_object() || !value.contains(key)) {
        row.problem = fmt::format("expected a JSON object with the key \"{}\"", key);
      } else if (count_key(line, key) > 1) {
        row.problem = fmt::format("expected the key \"{}\" once, got it several times", key);
      } else if (value[key].is_string()) {
        to = value[key].get<std::string>();
      } else if (value[key].is_number() || value[key].is_boolean()) {
        to = value[key].dump();
      } else {
        row.problem = fmt::format("expected a text, a number, true or false under \"{}\"", key);
      }
    };
    take(label_column, row.label);
    take(text_column, row.text);
    check_content(row);
    rows.push_back(std::move(row));
  });
  return rows;
}

}  // namespace

std::vector<TableRow> read_table(const std::string& content, const std::string& format, const std::string& label_column,
                                 const std::string& text_column, const std::string& name) {
  if (format == ".jsonl") return read_json_lines(content, label_column, text_column);
  const std::vector<Record> records = split_records(content, format == ".csv" ? ',' : '\t', format == ".csv");
  if (records.empty()) throw data_error("{}: the file is empty", name);
  const bool named = !is_number(label_column) || !is_number(text_column);
  const size_t label = find_column(label_column, records[0].fields, name);
  const size_t text = find_column(text_column, records[0].fields, name);
  const size_t columns = records[0].fields.size();  // of the names, or of the first row
  std::vector<TableRow> rows;
  for (size_t r = named ? 1 : 0; r < records.size(); ++r) {
    TableRow row;
    row.line = records[r].line;
    row.problem = records[r].problem;
    if (row.problem.empty() && std::max(label, text) >= records[r].fields.size()) {
      row.problem = fmt::format("expected {} columns, got {}", std::max(label, text) + 1, records[r].fields.size());
    }
    if (row.problem.empty() && records[r].fields.size() > columns) {
      row.problem = fmt::format("expected {} columns, got {}; is a separator inside a text without quotes?", columns,
                                records[r].fields.size());
    }
    if (row.problem.empty()) {
      row.label = records[r].fields[label];
      row.text = records[r].fields[text];
    }
    check_content(row);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string table_format(const std::string& path) {
  for (const char* format : {".csv", ".tsv", ".jsonl"}) {
    if (fs::path(path).filename().string().find(format) != std::string::npos) return format;
  }
  throw data_error("{}: expected a name that ends in .csv, .tsv or .jsonl (or those and .gz, .xz or .zst)", path);
}

namespace {

Dataset to_dataset(const std::vector<TableRow>& rows, const std::string& name, int64_t length,
                   const std::vector<std::string>& labels, bool of_model) {
  Dataset data;
  for (const TableRow& row : rows) {
    const auto label = std::lower_bound(labels.begin(), labels.end(), row.label);
    if (!row.problem.empty()) {
      data.add_problem(fmt::format("{} line {}: {}", name, row.line, row.problem));
    } else if (label == labels.end() || *label != row.label) {
      data.add_problem(fmt::format("{} line {}: the label \"{}\" {}", name, row.line, shown(row.label),
                                   of_model ? "is none of the model's" : "does not occur in the training rows"));
    } else {
      data.add_row(byte_tokens(row.text), static_cast<int32_t>(label - labels.begin()), length);
    }
  }
  return data;
}

// "; 3 of 5 rows are unusable: line 2: the text is empty; ..."; empty if there are none.
std::string describe_unusable(const std::vector<TableRow>& rows) {
  Dataset problems;
  for (const TableRow& row : rows) {
    if (!row.problem.empty()) problems.add_problem(fmt::format("line {}: {}", row.line, row.problem));
  }
  if (problems.bad == 0) return "";
  return fmt::format("; {} of {} rows are unusable: {}{}", problems.bad, rows.size(),
                     fmt::join(problems.problems, "; "),
                     problems.bad > static_cast<int64_t>(problems.problems.size()) ? "; ..." : "");
}

}  // namespace

TaskData load_table(const DataConfig& config) {
  if (config.data.empty()) throw usage_error("data: the task table needs a file of your own; pass it with --data");
  const fs::path given = config.data;
  const bool folder = fs::is_directory(given);
  auto split_path = [&](const char* split) {
    return folder ? find_split(given, split, {".csv", ".tsv", ".jsonl"}) : fs::path();
  };
  TaskData data;
  auto read = [&](const fs::path& path) {
    data.files.push_back(path);
    return read_table(read_file(path), table_format(path.string()), config.label_column, config.text_column,
                      path.filename().string());
  };
  const fs::path train = folder ? split_path("train") : given;
  if (train.empty())
    throw data_error("{}: expected train.csv, train.tsv or train.jsonl in this folder", given.string());
  const std::vector<TableRow> rows = read(train);
  std::set<std::string> labels;
  for (const TableRow& row : rows) {
    if (row.problem.empty()) labels.insert(row.label);
  }
  if (!config.labels.empty()) labels = {config.labels.begin(), config.labels.end()};
  constexpr size_t kMostLabels = 10000;
  if (labels.size() < 2 || labels.size() > kMostLabels) {
    throw data_error("{}: expected 2 to {} different labels in column {}, got {}{}", train.string(), kMostLabels,
                     shown(config.label_column), labels.size(), describe_unusable(rows));
  }
  data.vocabulary = kByteVocabulary;
  data.labels.assign(labels.begin(), labels.end());
  data.train = to_dataset(rows, train.filename().string(), config.length, data.labels, !config.labels.empty());
  for (const auto& [name, split] : {std::pair{"valid", &data.valid}, {"test", &data.test}}) {
    if (const fs::path path = split_path(name); !path.empty()) {
      *split = to_dataset(read(path), path.filename().string(), config.length, data.labels, !config.labels.empty());
    }
  }
  if (split_path("test").empty()) cut_test_split(data, static_cast<uint64_t>(config.data_seed));
  return data;
}

}  // namespace strata
