// Tables of texts with labels: CSV (RFC 4180), TSV and JSON lines.
#pragma once

#include <string>
#include <vector>

namespace strata {

struct TableRow {
  int64_t line = 0;  // where it begins
  std::string label, text;
  std::string problem;  // why it cannot be used; label and text are empty then
};

// format: ".csv", ".tsv" or ".jsonl". A column is a name of the first line (a key in JSON), or a number from 1 of a
// table without names.
std::vector<TableRow> read_table(const std::string& content, const std::string& format, const std::string& label_column,
                                 const std::string& text_column, const std::string& name);

// The format of a file, from its name. Throws a data error for other names.
std::string table_format(const std::string& path);

}  // namespace strata
