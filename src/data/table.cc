#include "data/table.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "data/lines.h"
#include "data/task.h"
#include "util/error.h"

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
      field.append(content, at, end - at);
      more = end < content.size() && content[end] == separator;
      if (!more && !field.empty() && field.back() == '\r') field.pop_back();
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
                     column, fmt::join(names, ", "));
  }
  return static_cast<size_t>(found - names.begin());
}

bool is_number(const std::string& column) {
  return !column.empty() && std::all_of(column.begin(), column.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<TableRow> read_json_lines(const std::string& content, const std::string& label_column,
                                      const std::string& text_column) {
  std::vector<TableRow> rows;
  for_each_line(content, [&](std::string_view line, int64_t number) {
    TableRow row;
    row.line = number;
    const Json value = Json::parse(line, nullptr, false);
    auto take = [&](const std::string& key, std::string& to) {
      if (!row.problem.empty()) return;
      if (!value.is_object() || !value.contains(key)) {
        row.problem = fmt::format("expected a JSON object with the key \"{}\"", key);
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
    if (row.problem.empty() && row.text.empty()) row.problem = "the text is empty";
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
  std::vector<TableRow> rows;
  for (size_t r = named ? 1 : 0; r < records.size(); ++r) {
    TableRow row;
    row.line = records[r].line;
    row.problem = records[r].problem;
    if (row.problem.empty() && std::max(label, text) >= records[r].fields.size()) {
      row.problem = fmt::format("expected {} columns, got {}", std::max(label, text) + 1, records[r].fields.size());
    }
    if (row.problem.empty()) {
      row.label = records[r].fields[label];
      row.text = records[r].fields[text];
      if (row.text.empty()) row.problem = "the text is empty";
    }
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
                   const std::vector<std::string>& labels) {
  Dataset data;
  for (const TableRow& row : rows) {
    const auto label = std::lower_bound(labels.begin(), labels.end(), row.label);
    if (!row.problem.empty()) {
      data.add_problem(fmt::format("{} line {}: {}", name, row.line, row.problem));
    } else if (label == labels.end() || *label != row.label) {
      data.add_problem(fmt::format("{} line {}: the label \"{}\" does not occur in the training rows", name, row.line,
                                   row.label.substr(0, 40)));
    } else {
      data.add_row(byte_tokens(row.text), static_cast<int32_t>(label - labels.begin()), length);
    }
  }
  return data;
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
  constexpr size_t kMostLabels = 10000;
  if (labels.size() < 2 || labels.size() > kMostLabels) {
    throw data_error("{}: expected 2 to {} different labels in column {}, got {}", train.string(), kMostLabels,
                     config.label_column, labels.size());
  }
  data.vocabulary = kByteVocabulary;
  data.labels.assign(labels.begin(), labels.end());
  data.train = to_dataset(rows, train.filename().string(), config.length, data.labels);
  for (const auto& [name, split] : {std::pair{"valid", &data.valid}, {"test", &data.test}}) {
    if (const fs::path path = split_path(name); !path.empty()) {
      *split = to_dataset(read(path), path.filename().string(), config.length, data.labels);
    }
  }
  if (split_path("test").empty()) cut_test_split(data, static_cast<uint64_t>(config.data_seed));
  return data;
}

}  // namespace strata
