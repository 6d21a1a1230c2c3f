// Tables of texts with labels: CSV, TSV, JSON lines.
#include "data/table.h"

#include <gtest/gtest.h>

#include "data/support.h"
#include "data/task.h"

namespace strata {
namespace {

// Rows as text: "line label|text", or "line !problem".
std::vector<std::string> rows_of(const std::string& content, const std::string& format,
                                 const std::string& label = "label", const std::string& text = "text") {
  std::vector<std::string> words;
  for (const TableRow& row : read_table(content, format, label, text, "t" + format)) {
    words.push_back(
        fmt::format("{} {}", row.line, row.problem.empty() ? row.label + "|" + row.text : "!" + row.problem));
  }
  return words;
}
using Words = std::vector<std::string>;

TEST(Table, CsvQuotes) {
  EXPECT_EQ(
      rows_of("text,label\nplain,a\n\"with, comma\",b\n\"say \"\"hi\"\"\",\"c\"\n\"two\nlines\",d\n\"\"\"\",e\nlast,f",
              ".csv"),
      (Words{"2 a|plain", "3 b|with, comma", "4 c|say \"hi\"", "5 d|two\nlines", "7 e|\"", "8 f|last"}));
}

TEST(Table, CsvWindowsLineEndsAndBlankLines) {
  EXPECT_EQ(rows_of("label,text\r\na,\"x\r\ny\"\r\n\r\nb,\"z\"\r\n", ".csv"), (Words{"2 a|x\r\ny", "5 b|z"}));
}

// A carriage return in quotes is a part of the field, also at the end of the line.
TEST(Table, CsvQuotedCarriageReturn) {
  EXPECT_EQ(rows_of("label,text\na,\"x\r\"\r\nb,y\r\n", ".csv"), (Words{"2 a|x\r", "3 b|y"}));
}

TEST(Table, CsvFaults) {
  EXPECT_EQ(rows_of("label,text\na,x\nb\nc,\nd,\"open\ne,y\n", ".csv"),
            (Words{"2 a|x", "3 !expected 2 columns, got 1", "4 !the text is empty",
                   "5 !expected a closing quote, got the end of the file"}));
  EXPECT_EQ(error_of(ExitCode::kData, [] { rows_of("", ".csv"); }), "t.csv: the file is empty");
  EXPECT_EQ(rows_of("label,text\n", ".csv"), Words{});
}

TEST(Table, RowsThatWouldBeReadWrong) {
  EXPECT_EQ(rows_of("label,text\na,one, two\n,x\nb,y\n", ".csv"),
            (Words{"2 !expected 2 columns, got 3; is a separator inside a text without quotes?",
                   "3 !the label is empty", "4 b|y"}));
  EXPECT_EQ(rows_of("a\tone\nb\ttwo\tthree\n", ".tsv", "1", "2"),
            (Words{"1 a|one", "2 !expected 2 columns, got 3; is a separator inside a text without quotes?"}));
  EXPECT_EQ(rows_of("id,label,text\n1,a,x\n2,b,y,\n", ".csv"),
            (Words{"2 a|x", "3 !expected 3 columns, got 4; is a separator inside a text without quotes?"}));
  EXPECT_EQ(error_of(ExitCode::kData, [] { rows_of("text,label,text\nx,a,y\n", ".csv"); }),
            "t.csv: expected one column named text, got columns 1 and 3 of that name; rename one, or choose by number "
            "with --label-column and --text-column");
  EXPECT_EQ(rows_of("text,label,text\nx,a,y\n", ".csv", "label", "3"), Words{"2 a|y"});
  EXPECT_EQ(rows_of("{\"label\": \"\", \"text\": \"x\"}\n{\"label\": 1, \"text\": \"x\", \"text\": \"y\"}\n"
                    "{\"label\": 1, \"text\": \"x\", \"more\": {\"text\": \"y\"}}\n",
                    ".jsonl"),
            (Words{"1 !the label is empty", "2 !expected the key \"text\" once, got it several times", "3 1|x"}));
}

// Labels go into JSON: results, and the header of a model. Texts are bytes.
TEST(Table, LabelsAreUtf8) {
  EXPECT_EQ(rows_of("label,text\ncaf\xe9,x\ncaf\xc3\xa9,\xe9\n", ".csv"),
            (Words{"2 !expected a label in UTF-8, got caf\\xe9; convert the file", "3 caf\xc3\xa9|\xe9"}));
}

// A key can be written in several ways.
TEST(Table, EscapedKeysAreTheSameKey) {
  EXPECT_EQ(rows_of(R"({"label": "a", "la\u0062el": "b", "text": "x"})", ".jsonl"),
            Words{"1 !expected the key \"label\" once, got it several times"});
  EXPECT_EQ(rows_of(R"({"la\u0062el": "b", "text": "x \u0062"})", ".jsonl"), Words{"1 b|x b"});
}

// What others wrote is cut and escaped in messages.
TEST(Table, MessagesAreShort) {
  const std::string message =
      error_of(ExitCode::kData, [] { rows_of("\x1b[31m," + std::string(1000000, 'x') + "\n", ".csv"); });
  EXPECT_SAYS(message, "got \\x1b[31m, xxxxxxxxxxxxxxxxxxxx... (1000000 characters); choose");
  const std::string deep = "{\"label\": 1, \"text\": " + std::string(1000000, '[') + "\n";
  EXPECT_EQ(rows_of(deep, ".jsonl"), Words{"1 !expected a JSON object with the key \"label\""});
}

TEST(Table, TsvHasNoQuotes) {
  EXPECT_EQ(rows_of("id\tlabel\ttext\n1\ta\t\"quoted, kept\n2\tb\tx\"y\"\n", ".tsv"),
            (Words{"2 a|\"quoted, kept", "3 b|x\"y\""}));
}

TEST(Table, NumbersMeanATableWithoutNames) {
  EXPECT_EQ(rows_of("a,first\nb,second\n", ".csv", "1", "2"), (Words{"1 a|first", "2 b|second"}));
  EXPECT_EQ(rows_of("x\ttext\na\tb\n", ".tsv", "2", "1"), (Words{"1 text|x", "2 b|a"}));
  EXPECT_EQ(rows_of("x,text\na,b\n", ".csv", "1", "text"),
            (Words{"2 a|b"}));  // one name is enough for a first line of names
  EXPECT_EQ(rows_of("a,b\n", ".csv", "1", "3"), (Words{"1 !expected 3 columns, got 2"}));
}

TEST(Table, UnknownColumnListsTheColumns) {
  EXPECT_EQ(error_of(ExitCode::kData, [] { rows_of("id,sentiment,text\n1,a,b\n", ".csv"); }),
            "t.csv: expected a column named label, got id, sentiment, text; choose with --label-column and "
            "--text-column");
  EXPECT_SAYS(error_of(ExitCode::kData, [] { rows_of("label\tbody\n", ".tsv"); }),
              "a column named text, got label, body");
}

TEST(Table, JsonLines) {
  EXPECT_EQ(rows_of("{\"text\": \"a\\n\\\"b\\u00e9\", \"label\": \"x\"}\n\n{\"label\": 3, \"text\": "
                    "\"t\"}\r\n{\"label\": true, \"text\": 1.5}\n",
                    ".jsonl"),
            (Words{"1 x|a\n\"b\xc3\xa9", "3 3|t", "4 true|1.5"}));
  EXPECT_EQ(
      rows_of("{\"label\": 1}\n[1]\n{\"label\"\n{\"text\": \"x\"}\n", ".jsonl"),
      (Words{"1 !expected a JSON object with the key \"text\"", "2 !expected a JSON object with the key \"label\"",
             "3 !expected a JSON object with the key \"label\"", "4 !expected a JSON object with the key \"label\""}));
  EXPECT_EQ(rows_of("{\"y\": \"b\", \"x\": \"a\"}\n", ".jsonl", "y", "x"), Words{"1 b|a"});
}

// A row without tokens is no input for a model, in any format.
TEST(Table, JsonLinesWithoutText) {
  EXPECT_EQ(rows_of("{\"label\": \"a\", \"text\": \"\"}\n", ".jsonl"), Words{"1 !the text is empty"});
  EXPECT_EQ(rows_of(std::string("{\"label\": \"a\", \"text\": \"b\"}\0 lost", 34), ".jsonl"),
            Words{"1 !expected a JSON object with the key \"label\""});
}

// ------------------------------------------------------------------------------------------------- the task

struct TableTask : ::testing::Test {
  TableTask() { config.task = "table"; }
  TaskData load(const fs::path& data) {
    config.data = data.string();
    return load_task(config);
  }
  std::string refusal(const fs::path& data) {
    return error_of(ExitCode::kData, [&] { load(data); });
  }
  TempFolder folder;
  DataConfig config;
};

std::string many_rows(int rows) {
  std::string table = "label,text\n";
  for (int i = 0; i < rows; ++i) table += fmt::format("{},row {}\n", i % 3 == 0 ? "zebra" : "ant", i);
  return table;
}

TEST_F(TableTask, LabelsAreSortedNames) {
  const TaskData data = load(folder.write("my.csv", many_rows(100)));
  EXPECT_EQ(data.labels, (Words{"ant", "zebra"}));
  EXPECT_EQ(data.vocabulary, kByteVocabulary);
  EXPECT_EQ(data.test.size(), 10);  // a tenth, and a tenth of the rest
  EXPECT_EQ(data.valid.size(), 9);
  EXPECT_EQ(data.train.size(), 81);
  for (const Dataset* split : {&data.train, &data.valid, &data.test}) {
    for (int64_t i = 0; i < split->size(); ++i) {
      const int number = std::stoi(text_of(split->row(i)).substr(4));
      EXPECT_EQ(split->rows[i].label, number % 3 == 0 ? 1 : 0) << number;
    }
  }
}

TEST_F(TableTask, FolderWithUnknownTestLabels) {
  folder.write("train.csv", many_rows(20));
  folder.write("valid.jsonl", "{\"label\": \"ant\", \"text\": \"v\"}\n");
  folder.write("test.tsv", "text\tlabel\nt\tant\nu\tunknown\nw\tzebra\n");
  const TaskData data = load(folder.path());
  EXPECT_EQ(data.train.size(), 20);
  EXPECT_EQ(data.valid.size(), 1);
  EXPECT_EQ(text_of(data.test.tokens), "tw");
  EXPECT_EQ(data.test.bad, 1);
  EXPECT_EQ(data.test.problems, Words{"test.tsv line 3: the label \"unknown\" does not occur in the training rows"});
}

// For a model: its labels, and all rows in one split.
TEST_F(TableTask, WholeForAModel) {
  config.data = folder.write("my.csv", many_rows(5) + "other,x\n").string();
  config.labels = {"ant", "cat", "zebra"};
  const TaskData data = load_task(config, {}, /*whole=*/true);
  EXPECT_EQ(data.labels, config.labels);
  EXPECT_EQ(data.train.size() + data.valid.size(), 0);
  ASSERT_EQ(data.test.size(), 5);
  Names texts;
  for (int64_t i = 0; i < 5; ++i) {
    texts.insert(text_of(data.test.row(i)));
    EXPECT_EQ(data.labels[data.test.rows[i].label], text_of(data.test.row(i)).back() % 3 == 0 ? "zebra" : "ant");
  }
  EXPECT_EQ(texts, (Names{"row 0", "row 1", "row 2", "row 3", "row 4"}));
  EXPECT_EQ(data.test.bad, 1);
  EXPECT_EQ(data.test.problems, Words{"my.csv line 7: the label \"other\" is none of the model's"});
}

TEST_F(TableTask, NumberedColumnsAndLength) {
  config.label_column = "2", config.text_column = "1", config.length = 3;
  const TaskData data = load(folder.write(
      "n.tsv", "abcdef\tx\nab\ty\n" + std::string(20, 'q') + "\tx\nab\ty\nab\ty\nab\ty\nab\ty\nab\ty\nab\ty\nab\ty\n"));
  EXPECT_EQ(data.labels, (Words{"x", "y"}));
  EXPECT_EQ(data.train.cut, 2);
  for (int64_t i = 0; i < data.train.size(); ++i) EXPECT_LE(data.train.row(i).size(), 3U);
}

TEST_F(TableTask, Refusals) {
  EXPECT_EQ(refusal(folder.write("one.csv", "label,text\na,x\na,y\n")),
            (folder.path() / "one.csv").string() + ": expected 2 to 10000 different labels in column label, got 1");
  EXPECT_SAYS(refusal(folder.write("none.csv", "label,text\n,x\na\nb,y,z\n")),
              "got 0; 3 of 3 rows are unusable: line 2: the label is empty; line 3: expected 2 columns, got 1; line 4: "
              "expected 2 columns, got 3; is a separator");
  EXPECT_SAYS(refusal(folder.write("notes.txt", "label,text\n")), "expected a name that ends in .csv, .tsv or .jsonl");
  EXPECT_SAYS(refusal(folder.path()), "expected train.csv, train.tsv or train.jsonl in this folder");
  EXPECT_EQ(refusal(folder.write("few.csv", many_rows(9))), "table: no usable test rows");  // a tenth of nine is none
  config.data.clear();
  EXPECT_SAYS(error_of(ExitCode::kUsage, [&] { load_task(config); }), "pass it with --data");
}

// A test file without usable rows is an error; training rows must not silently replace it.
TEST_F(TableTask, UnusableTestFileIsAnError) {
  folder.write("train.csv", many_rows(20));
  folder.write("test.csv", "label,text\nunknown,x\n");
  EXPECT_SAYS(refusal(folder.path()), "no usable test rows");
}

}  // namespace
}  // namespace strata
