// libFuzzer target: a table is refused, or every row is whole or has a problem. Rows written as CSV and read again are
// the same. The first byte selects the format, the second the columns.
#include <string_view>

#include "data/table.h"
#include "refusal.h"

namespace {

using strata::TableRow;
using strata::fuzz::require;

void append_quoted(std::string& to, const std::string& field) {
  to += '"';
  for (const char c : field) to += c == '"' ? std::string("\"\"") : std::string(1, c);
  to += '"';
}

void check(const std::vector<TableRow>& rows, const std::string& content) {
  const auto lines = static_cast<int64_t>(std::count(content.begin(), content.end(), '\n')) + 1;
  int64_t last = 0;
  std::string again = "label,text\n";
  std::vector<TableRow> whole;
  for (const TableRow& row : rows) {
    require(row.line > last && row.line <= lines, "rows in the order of their lines");
    last = row.line;
    if (!row.problem.empty()) {
      strata::fuzz::check_shown(row.problem);
      continue;
    }
    require(!row.label.empty() && !row.text.empty(), "a label and a text");
    append_quoted(again, row.label);
    again += ',';
    append_quoted(again, row.text);
    again += '\n';
    whole.push_back(row);
  }
  const std::vector<TableRow> second = strata::read_table(again, ".csv", "label", "text", "again.csv");
  require(second.size() == whole.size(), "as many rows after writing");
  for (size_t r = 0; r < whole.size(); ++r)
    require(second[r].label == whole[r].label && second[r].text == whole[r].text && second[r].problem.empty(),
            "the same rows after writing");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  static const char* const formats[] = {".csv", ".tsv", ".jsonl"};
  static const std::pair<const char*, const char*> columns[] = {
      {"label", "text"}, {"1", "2"}, {"2", "label"}, {"3", "3"}};
  const char* const format = formats[data[0] % 3];
  const auto& column = columns[data[1] % 4];
  const std::string content(reinterpret_cast<const char*>(data + 2), size - 2);
  std::vector<TableRow> rows;
  if (strata::fuzz::accepts([&] { rows = strata::read_table(content, format, column.first, column.second, "fuzz"); }))
    check(rows, content);
  return 0;
}
