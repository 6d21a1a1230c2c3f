// Options: defaults, config files, refusals, records.
#include "util/options.h"

#include <gtest/gtest.h>

#include "data/support.h"

namespace strata {
namespace {

// One option of every type, instead of the options of a run.
struct Fields {
  Fields() {
    table.begin_group("First");
    table.add("batch_size", &batch_size, {.help = "Rows a step", .min = 1, .max = 4096});
    table.add("rate", &rate, {.help = "Step size", .min = 0});
    table.begin_group("Second");
    table.add("kind", &kind, {.help = "Which", .choices = {"full", "hsa", "hkt"}});
    table.add("shuffle", &shuffle, {.help = "In random order"});
    table.add("name", &name, {.help = "Any word"});
    table.add("sizes", &sizes, {.help = "Some words"});
    table.add("depth", &depth, {.help = "Of lists", .task = "listops"});
  }

  int64_t batch_size = 64, depth = 4;
  double rate = 0.5;
  std::string kind = "full", name;
  bool shuffle = true;
  std::vector<std::string> sizes = {"1", "2"};
  OptionTable table;
};

struct Options : ::testing::Test, Fields {
  void give(const std::string& option, const std::string& word) {  // as the command line does
    table.set(*table.find(option), {word}, table.find(option)->flag());
    table.find(option)->given = true;
  }
  std::string refusal(const std::string& option, const std::vector<std::string>& words) {
    return error_of(ExitCode::kUsage, [&] { table.set(*table.find(option), words, table.find(option)->flag()); });
  }
  void load(const std::string& file, const std::string& content) { table.load_config(folder.write(file, content)); }
  // Without the folder's name, which changes.
  std::string load_refusal(const std::string& file, const std::string& content) {
    const std::string message = error_of(ExitCode::kUsage, [&] { load(file, content); });
    const size_t at = message.find(file);
    return at == std::string::npos ? message : message.substr(at);
  }
  bool reads_toml() { return !contains(load_or_error("probe.toml", ""), "no toml++"); }
  std::string load_or_error(const std::string& file, const std::string& content) {
    try {
      load(file, content);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TempFolder folder;
};

TEST_F(Options, DefaultsAndNames) {
  EXPECT_EQ(table.record().dump(),
            R"({"batch_size":64,"rate":0.5,"kind":"full","shuffle":true,"name":"","sizes":["1","2"],"depth":4})");
  EXPECT_EQ(table.find("batch-size"), table.find("batch_size"));
  EXPECT_EQ(table.find("batch"), nullptr);
  const Option& option = *table.find("batch_size");
  EXPECT_EQ(option.flag(), "--batch-size");
  EXPECT_EQ(option.group, "First");
  EXPECT_EQ(table.find("kind")->group, "Second");
  EXPECT_EQ(option.value(), Json(64));
  EXPECT_FALSE(option.given);
  std::string types;
  for (const Option& each : table.options()) types += each.type_name() + " ";
  EXPECT_EQ(types, "N X full|hsa|hkt  TEXT LIST N ");
}

TEST_F(Options, SetFromWords) {
  give("batch_size", "4096");
  give("rate", "1e-3");
  give("kind", "hkt");
  give("shuffle", "false");
  give("name", "-1 ");
  table.set(*table.find("sizes"), {"a", "b", "c"}, "--sizes");
  EXPECT_EQ(batch_size, 4096);
  EXPECT_EQ(rate, 1e-3);
  EXPECT_EQ(kind, "hkt");
  EXPECT_FALSE(shuffle);
  EXPECT_EQ(name, "-1 ");
  EXPECT_EQ(sizes, (std::vector<std::string>{"a", "b", "c"}));
}

TEST_F(Options, TypeErrors) {
  for (const char* word : {"", "x", "1.5", "1e3", "12x", " 12"}) {
    EXPECT_EQ(refusal("batch_size", {word}), std::string("--batch-size: expected a whole number, got ") + word);
  }
  EXPECT_EQ(refusal("rate", {"fast"}), "--rate: expected a number, got fast");
  EXPECT_EQ(refusal("shuffle", {"yes"}), "--shuffle: expected true or false, got yes");
  EXPECT_EQ(refusal("name", {"a", "b"}), "--name: expected one value, got 2");
  EXPECT_EQ(refusal("name", {}), "--name: expected one value, got 0");
  EXPECT_EQ(batch_size, 64);  // an error changes nothing
  EXPECT_EQ(rate, 0.5);
}

TEST_F(Options, RangeErrors) {
  EXPECT_EQ(refusal("batch_size", {"0"}), "--batch-size: expected 1 to 4096, got 0");
  EXPECT_EQ(refusal("batch_size", {"4097"}), "--batch-size: expected 1 to 4096, got 4097");
  EXPECT_EQ(refusal("rate", {"-0.1"}), "--rate: expected 0 or more, got -0.1");
  EXPECT_EQ(refusal("batch_size", {"99999999999999999999"}),
            "--batch-size: expected 1 to 4096, got 99999999999999999999");
  EXPECT_EQ(refusal("batch_size", {std::string(309, '1')}),
            "--batch-size: expected 1 to 4096, got 11111111111111111111... (309 characters)");
  EXPECT_EQ(refusal("depth", {"-99999999999999999999"}),
            "--depth: expected a whole number of at most 64 bits, got -99999999999999999999");
  for (const char* word : {"nan", "inf", "-inf", "1e400"})
    EXPECT_EQ(refusal("rate", {word}), std::string("--rate: expected a finite number, got ") + word);
  EXPECT_EQ(rate, 0.5);
  EXPECT_EQ(batch_size, 64);
}

// People read limits as they would write them.
TEST_F(Options, LimitsAreReadable) {
  int64_t rows = 1;
  double share = 0.5;
  table.add("rows", &rows, {.help = "Rows", .min = 0, .max = 1 << 20});
  table.add("share", &share, {.help = "A share", .min = 1e-6, .max = 0.99});
  EXPECT_EQ(refusal("rows", {"-1"}), "--rows: expected 0 to 1048576, got -1");
  EXPECT_EQ(refusal("share", {"1"}), "--share: expected 1e-06 to 0.99, got 1");
}

TEST_F(Options, ChoiceErrors) {
  EXPECT_EQ(refusal("kind", {"hta"}), "--kind: expected one of full, hsa, hkt, got hta (did you mean hsa?)");
  EXPECT_EQ(refusal("kind", {"convolution"}), "--kind: expected one of full, hsa, hkt, got convolution");
  EXPECT_EQ(kind, "full");
}

TEST_F(Options, Suggestions) {
  EXPECT_EQ(suggestion("lenght", {"width", "length"}), " (did you mean length?)");
  EXPECT_EQ(suggestion("zzzzzz", {"width", "length"}), "");
  EXPECT_EQ(suggestion("x", {}), "");
}

// ------------------------------------------------------------------------------------------------- files

TEST_F(Options, TomlWithSectionsAndComments) {
  if (!reads_toml()) GTEST_SKIP() << "this build has no toml++";
  load("run.toml",
       "# a run\nrate = 1  # a whole number will do\nshuffle = false\n[model]\nkind = \"hsa\"\n"
       "[model.inner]\nbatch-size = 8\nsizes = [3, 'x', true]\n");
  EXPECT_EQ(rate, 1);
  EXPECT_FALSE(shuffle);
  EXPECT_EQ(kind, "hsa");
  EXPECT_EQ(batch_size, 8);
  EXPECT_EQ(sizes, (std::vector<std::string>{"3", "x", "true"}));
  EXPECT_EQ(name, "");
  EXPECT_TRUE(table.find("kind")->given);
  EXPECT_FALSE(table.find("name")->given);
}

TEST_F(Options, Json) {
  load("run.json", R"({"rate": 0.1, "training": {"batch_size": 7, "shuffle": false}, "name": "x", "sizes": []})");
  EXPECT_EQ(rate, 0.1);
  EXPECT_EQ(batch_size, 7);
  EXPECT_FALSE(shuffle);
  EXPECT_EQ(name, "x");
  EXPECT_TRUE(sizes.empty());
}

// Deep nesting is refused by every way into a file, before it overflows the stack.
TEST_F(Options, DeepFiles) {
  const std::string lists(200000, '['), tables = "{\"a\":";
  EXPECT_EQ(load_refusal("deep.json", "{\"a\": " + lists),
            "deep.json: expected a JSON object of options, got JSON that is nested deeper than 100 levels");
  std::string objects;
  for (int i = 0; i < 200000; ++i) objects += tables;
  EXPECT_SAYS(load_refusal("deep.json", objects), "nested deeper than 100 levels");
  EXPECT_SAYS(load_refusal("text.json", "{\"nmae\": \"" + std::string(1000, '[') + "\"}"), "did you mean name");
  if (!reads_toml()) GTEST_SKIP() << "this build has no toml++";
  std::string dots = "a";
  for (int i = 0; i < 200000; ++i) dots += ".a";
  for (const std::string& text : {"a = " + lists, "[" + dots + "]\n", dots + " = 1\n", "a = {" + dots + " = 1}\n",
                                  "x = 1\ny = \"\"\"\n\"\"\"\n" + dots + " = 1\n"})
    EXPECT_EQ(load_refusal("deep.toml", text), "deep.toml: expected at most 100 levels of tables and lists, got more");
  const std::string points(1000, '.');  // in strings, comments and numbers
  load(
      "flat.toml", "# " + points + "\nname = '" + points + "' # [[[\n[a.\"" + points + "\".b]\nsizes = [" + [] {
        std::string numbers;
        for (int i = 0; i < 300; ++i) numbers += "0.5, ";
        return numbers;
      }() + "]\n");
  EXPECT_EQ(name, points);
  EXPECT_EQ(sizes.size(), 300U);
}

TEST_F(Options, TheCommandLineWins) {
  give("batch_size", "3");
  load("run.json", R"({"batch_size": 7, "rate": 2})");
  EXPECT_EQ(batch_size, 3);
  EXPECT_EQ(rate, 2);
  load("more.json", R"({"batch_size": 9, "name": "y"})");
  EXPECT_EQ(batch_size, 3);
  EXPECT_EQ(name, "y");
}

TEST_F(Options, FaultsOfFiles) {
  EXPECT_EQ(load_refusal("run.json", R"({"batch_sise": 7})"),
            "run.json: line 1: batch_sise: unknown option (did you mean batch_size?)");
  EXPECT_EQ(load_refusal("run.json", R"({"optimiser-momentum": 7})"),
            "run.json: line 1: optimiser-momentum: unknown option");
  EXPECT_EQ(load_refusal("run.json", R"({"a": {"batch_size": 0}})"),
            "run.json: line 1: batch_size: expected 1 to 4096, got 0");
  EXPECT_EQ(load_refusal("run.json", R"({"batch_size": 2.5})"),
            "run.json: line 1: batch_size: expected a whole number, got 2.5");
  EXPECT_EQ(load_refusal("run.json", R"({"shuffle": 1})"), "run.json: line 1: shuffle: expected true or false, got 1");
  EXPECT_EQ(load_refusal("run.json", R"({"kind": "ful"})"),
            "run.json: line 1: kind: expected one of full, hsa, hkt, got ful (did you mean full?)");
  EXPECT_SAYS(load_refusal("run.json", R"({"name": null})"),
              "run.json: line 1: name: expected a word, a number, true, false or a list");
  EXPECT_EQ(load_refusal("run.json", "[1]"), "run.json: expected a JSON object of options, got an array");
  EXPECT_EQ(load_refusal("run.json", "{\"rate\": "),
            "run.json: line 1: expected a JSON object of options, got invalid JSON");
  EXPECT_SAYS(error_of(ExitCode::kData, [&] { table.load_config(folder.path() / "none.json"); }),
              "none.json: could not open");
}

TEST_F(Options, FaultsOfToml) {
  if (!reads_toml()) GTEST_SKIP() << "this build has no toml++";
  EXPECT_SAYS(load_refusal("run.toml", "rate = 1\nname = \n"), "run.toml: line 2: ");
  EXPECT_EQ(load_refusal("run.toml", "[a]\nbatchsize = 1\n"),
            "run.toml: line 2: batchsize: unknown option (did you mean batch_size?)");
  EXPECT_EQ(load_refusal("run.toml", "rate = \"fast\"\n"), "run.toml: line 1: rate: expected a number, got fast");
  EXPECT_EQ(load_refusal("run.toml", "rate = nan\n"), "run.toml: line 1: rate: expected a finite number, got nan");
  EXPECT_EQ(load_refusal("run.toml", "batch_size = 1.0\n"),
            "run.toml: line 1: batch_size: expected a whole number, got 1.0");
}

// The line is that of the key, also inside sections, after values that hold brackets, and for a key that comes twice.
TEST_F(Options, LinesOfFiles) {
  EXPECT_SAYS(
      load_refusal("run.json", "{\n\"name\": \"a\\\"}:{\",\n\"a\": {\"sizes\": [\n\"[\", 1],\n\n\"rate\":\n\"x\"}}"),
      "run.json: line 6: rate: expected a number");
  EXPECT_SAYS(load_refusal("run.json", "{\"rate\": 1,\n\"a\": {\"b\": {\n\"rate\": 2}}}"),
              "run.json: line 3: rate: set twice");
  EXPECT_SAYS(load_refusal("run.json", "{\"rate\": 1,\n\"name\": }"), "run.json: line 2: expected a JSON object");
  EXPECT_SAYS(load_refusal("run.json", "{\"rate\": 1e999}"),
              "run.json: expected a JSON object of options, got invalid");
  EXPECT_SAYS(load_refusal("run.json", std::string("{}\0}}}} \"a\": 1", 14)), "got invalid JSON");
  if (!reads_toml()) GTEST_SKIP() << "this build has no toml++";
  EXPECT_SAYS(load_refusal("run.toml", "sizes = [\n1,\n2]\n[a.b]\nkind = 'ful'\n"),
              "run.toml: line 5: kind: expected one");
  EXPECT_SAYS(load_refusal("run.toml", "rate = 1\n[s]\nc.rate = 2\n"), "run.toml: line 3: rate: set twice");
}

// Which file, also for what only TOML can say.
TEST_F(Options, DatesOfTomlNameTheFile) {
  if (!reads_toml()) GTEST_SKIP() << "this build has no toml++";
  EXPECT_SAYS(load_refusal("run.toml", "\nname = 1979-05-27\n"), "run.toml: line 2: name: expected a word");
}

// ------------------------------------------------------------------------------------------------- records

TEST_F(Options, RecordAndRestore) {
  give("rate", "0.1");
  give("sizes", "8");
  give("name", "a \"name\"\n");
  give("shuffle", "false");
  give("batch_size", "11");
  const std::string record = table.record().dump(2);
  Fields other;
  other.kind = "hsa";
  other.table.find("kind")->given = true;
  other.table.restore(Json::parse(record), "run");
  EXPECT_EQ(other.table.record().dump(2), record);
  EXPECT_EQ(other.rate, 0.1);  // bit for bit
  EXPECT_EQ(other.kind, "full");
  for (const Option& option : other.table.options()) EXPECT_FALSE(option.given) << option.name;
  EXPECT_EQ(error_of(ExitCode::kUsage,
                     [&] {
                       table.restore({{"ratio", 1}}, "old run");
                     }),
            "old run: ratio: unknown option (did you mean rate?)");
}

TEST_F(Options, SomeAreNotRecorded) {
  std::string folder_name;
  table.begin_group("Output");
  table.add("folder", &folder_name, {.help = "Where", .type = "FOLDER", .recorded = false});
  give("folder", "x");
  give("rate", "2");
  EXPECT_FALSE(table.record().contains("folder"));
  EXPECT_EQ(table.find("folder")->type_name(), "FOLDER");
  EXPECT_EQ(table.given("First").dump(), R"({"rate":2.0})");
  EXPECT_EQ(table.given("Output").dump(), R"({"folder":"x"})");
}

TEST_F(Options, CheckTask) {
  table.check_task("imdb");  // defaults are not checked
  give("depth", "3");
  table.check_task("listops");
  EXPECT_EQ(error_of(ExitCode::kUsage, [&] { table.check_task("imdb"); }),
            "depth: applies to the task listops only, but the task is imdb; remove it, or choose --task listops");
  give("batch_size", "3");
  table.find("depth")->given = false;
  table.check_task("imdb");
}

}  // namespace
}  // namespace strata
