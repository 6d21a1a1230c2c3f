// What a run needs without torch: schedules, metrics, event files.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "model/model_card.h"
#include "train/event_file.h"
#include "train/metrics.h"
#include "train/run_state.h"
#include "train/same_data.h"
#include "train/schedule.h"
#include "util/error.h"

namespace strata {
namespace {

fs::path fresh_folder(const std::string& name) {
  const fs::path folder = fs::temp_directory_path() / ("strata_run_test_" + name);
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

TEST(Schedule, RisesAndFalls) {
  const double rate = 0.1;
  EXPECT_DOUBLE_EQ(learning_rate_at("one-cycle", rate, 0.1, 0, 1000), rate / 25);
  EXPECT_DOUBLE_EQ(learning_rate_at("one-cycle", rate, 0.1, 50, 1000), (rate + rate / 25) / 2);
  EXPECT_DOUBLE_EQ(learning_rate_at("one-cycle", rate, 0.1, 100, 1000), rate);
  EXPECT_NEAR(learning_rate_at("one-cycle", rate, 0.1, 550, 1000), (rate + rate / 1e4) / 2, 1e-12);
  EXPECT_NEAR(learning_rate_at("one-cycle", rate, 0.1, 1000, 1000), rate / 1e4, 1e-12);
  EXPECT_DOUBLE_EQ(learning_rate_at("cosine", rate, 0.1, 0, 1000), rate / 101);
  EXPECT_DOUBLE_EQ(learning_rate_at("cosine", rate, 0.1, 100, 1000), rate);
  EXPECT_NEAR(learning_rate_at("cosine", rate, 0.1, 1000, 1000), 0, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate_at("constant", rate, 0.0, 0, 1000), rate);
  EXPECT_DOUBLE_EQ(learning_rate_at("constant", rate, 0.5, 999, 1000), rate);
  EXPECT_DOUBLE_EQ(learning_rate_at("one-cycle", rate, 0.0, 0, 1), rate);
}

TEST(Metrics, DropsLinesAfterTheCheckpointAndBrokenOnes) {
  const fs::path folder = fresh_folder("metrics");
  {
    MetricsLog log(folder, 0, false);
    for (int step = 1; step <= 5; ++step) log.add({{"kind", "train"}, {"step", step}, {"loss", 1.0 / step}});
  }
  std::ofstream(folder / "metrics.jsonl", std::ios::app) << R"({"kind":"train","st)";  // the power went out
  EXPECT_EQ(read_metrics(folder).size(), 5);
  MetricsLog log(folder, 3, false);
  log.add({{"kind", "train"}, {"step", 4}, {"loss", 7.0}});
  const std::vector<Json> lines = read_metrics(folder);
  ASSERT_EQ(lines.size(), 4);
  EXPECT_EQ(lines[2].at("step"), 3);
  EXPECT_EQ(lines[3].at("loss"), 7.0);
}

TEST(Metrics, LinesWithoutAStepAreDropped) {
  const fs::path folder = fresh_folder("steps");
  std::ofstream(folder / "metrics.jsonl") << R"({"step": "x"})"
                                             "\n"
                                             R"({"step": 1})"
                                             "\n"
                                             R"({"kind": 3})"
                                             "\n";
  const MetricsLog log(folder, 3, false);
  ASSERT_EQ(read_metrics(folder).size(), 1);
  EXPECT_EQ(read_metrics(folder)[0].at("step"), 1);
}

// Every value of `json`, at any depth, is replaced by values of other kinds; work(changed) may throw output and usage
// errors only. Returns how many it refused.
template <class Work>
int64_t change_every_value(const Json& json, const Work& work) {
  int64_t refused = 0;
  const Json flat = json.flatten();
  for (const auto& [key, value] : flat.items()) {
    for (const Json& other : {Json(), Json("x"), Json(-7), Json(1e300), Json(uint64_t{1} << 63), Json::array({1}),
                              Json::object({{"a", 1}}), Json(true)}) {
      Json changed = json;
      changed[Json::json_pointer(key)] = other;
      try {
        work(changed);
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == ExitCode::kOutput || error.code() == ExitCode::kUsage) << error.what();
        EXPECT_LT(std::string(error.what()).size(), 500) << error.what();
        ++refused;
      } catch (const std::exception& error) {
        ADD_FAILURE() << key << " as " << other << ": " << error.what();
      }
    }
  }
  return refused;
}

TEST(RunState, ComesBackFromItsJson) {
  RunState state;
  state.step = 7, state.best_step = 5, state.stale = 2, state.stopped_early = true, state.train_seconds = 1.5;
  state.best = {0.5, 0.25, 100};
  state.window = {3.5, 2, 8, 128, 0.5};
  state.adamw_steps = {{"embedding.weight", 7}};
  const Json json = Json::parse(state.to_json().dump());
  EXPECT_EQ(RunState::from_json(json, "last").to_json(), json);
  state.window.loss = std::numeric_limits<double>::quiet_NaN();  // the run diverged; JSON says null
  EXPECT_TRUE(std::isnan(RunState::from_json(Json::parse(state.to_json().dump()), "last").window.loss));
  EXPECT_GT(change_every_value(json, [](const Json& changed) { RunState::from_json(changed, "last"); }), 60);
  for (const auto& [key, value] : json.items()) {
    Json without = json;
    without.erase(key);
    EXPECT_THROW(RunState::from_json(without, "last"), Error) << key;
  }
}

TEST(ModelCard, DamageIsRefused) {
  ModelCard card;
  card.task = "table", card.tree = "text", card.labels = {"a", "b"}, card.words = {"the", "film", "\n"};
  card.label_column = "label", card.text_column = "text";
  card.shape = {5, 2, 64, false, 1, 16};
  const Json json = Json::parse(card.to_json().dump());
  EXPECT_EQ(ModelCard::from_json(json, "m").to_json(), json);
  EXPECT_GT(change_every_value(json, [](const Json& changed) { ModelCard::from_json(changed, "m"); }), 150);
  auto refuse = [&](const char* pointer, const Json& value, const std::string& words) {
    Json changed = json;
    changed[Json::json_pointer(pointer)] = value;
    try {
      ModelCard::from_json(changed, "m");
      ADD_FAILURE() << pointer;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  refuse("/labels", {"a"}, "one output for each label");  // predict would read behind the labels
  refuse("/shape/vocabulary", 4, "as many tokens as the task or its words have");
  refuse("/words/1", "two words", "words that a text can have");  // a tree would have two leaves for it
  refuse("/task", "other", "a known task");
  refuse("/tree", "other", "a known kind of tree");
  refuse("/shape/places", 1 << 20, "as many sibling positions");
  refuse("/shape/next_token", true, "next_token as the task says");
  refuse("/format", "1", "expected format 1, got format \"1\"");
}

TEST(Metrics, ARemovedFileIsAnError) {
  const fs::path folder = fresh_folder("removed");
  MetricsLog log(folder, 0, false);
  log.add({{"kind", "train"}, {"step", 1}});
  fs::remove(folder / "metrics.jsonl");
  try {
    log.add({{"kind", "train"}, {"step", 2}});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kOutput);
    EXPECT_NE(std::string(error.what()).find("was removed while the run was going on"), std::string::npos);
  }
}

Json entry(const std::string& path, int bytes, const std::string& digest) {
  return {{"path", path}, {"bytes", bytes}, {"sha256", digest}};
}

TEST(SameData, NamesWhatChanged) {
  const Json recorded = {entry("/d/train.csv", 10, "aa"), entry("/d/test.csv", 20, "bb")};
  using Lines = std::vector<std::string>;
  EXPECT_EQ(data_changes(recorded, recorded), Lines());
  EXPECT_EQ(data_changes(Json(), recorded), Lines()) << "an older record";
  EXPECT_EQ(data_changes(recorded, {entry("/d/train.csv", 10, "cc"), entry("/d/test.csv", 20, "bb")}),
            Lines{"/d/train.csv: recorded were 10 bytes with SHA-256 aa; there are now 10 bytes with SHA-256 cc"});
  EXPECT_EQ(data_changes(recorded, {entry("/e/train.csv", 10, "aa"), entry("/e/test.csv", 20, "bb")}), Lines())
      << "it only moved";
  EXPECT_EQ(data_changes(recorded, {entry("/e/train.csv", 10, "cc"), entry("/e/test.csv", 20, "bb")}),
            Lines{"/e/train.csv: recorded as /d/train.csv were 10 bytes with SHA-256 aa; there are now 10 bytes with "
                  "SHA-256 cc"});
  EXPECT_EQ(data_changes(recorded, Json::array({entry("/d/train.csv", 10, "aa")})),
            Lines{"/d/test.csv: recorded were 20 bytes with SHA-256 bb; it is not read any more"});
  const Json more = {recorded[0], recorded[1], entry("/d/valid.csv", 5, "dd")};
  EXPECT_EQ(data_changes(recorded, more), Lines{"/d/valid.csv: not recorded; there are now 5 bytes with SHA-256 dd"});
  EXPECT_EQ(data_changes(recorded, Json::array({entry("/f/other.csv", 1, "ee")}), /*others=*/true), Lines())
      << "asked for";
  EXPECT_EQ(data_changes(recorded, Json::array({entry("/d/test.csv", 1, "ee")}), /*others=*/true).size(), 1U);
  EXPECT_THROW(check_same_data(recorded, more, false), Error);
  EXPECT_NO_THROW(check_same_data(recorded, more, true));
}

TEST(EventFile, ChecksumIsCastagnolis) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);  // the check value of CRC-32C
  EXPECT_EQ(crc32c(""), 0U);
}

// Reads records as TensorBoard does: length, checksum of the length, event, checksum of the event.
TEST(EventFile, HoldsTheScalars) {
  const fs::path folder = fresh_folder("events");
  {
    MetricsLog log(folder, 0, true);
    log.add({{"kind", "valid"}, {"step", 300}, {"loss", 0.5}});
  }
  fs::path path;
  for (const auto& entry : fs::directory_iterator(folder / "tensorboard")) path = entry.path();
  const std::string bytes = read_file(path);
  std::vector<std::string> events;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t size = 0;
    uint32_t size_check = 0, check = 0;
    std::memcpy(&size, bytes.data() + at, 8);
    std::memcpy(&size_check, bytes.data() + at + 8, 4);
    ASSERT_LE(at + 16 + size, bytes.size());
    std::memcpy(&check, bytes.data() + at + 12 + size, 4);
    auto masked = [](uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8U; };
    EXPECT_EQ(size_check, masked(crc32c(std::string_view(bytes).substr(at, 8))));
    EXPECT_EQ(check, masked(crc32c(std::string_view(bytes).substr(at + 12, size))));
    events.push_back(bytes.substr(at + 12, size));
    at += 16 + size;
  }
  ASSERT_EQ(events.size(), 2);
  EXPECT_NE(events[0].find("brain.Event:2"), std::string::npos);
  // step 300 as a varint; Summary { Value { tag "valid/loss", simple_value 0.5f } } as field 5
  const std::string tail =
      std::string("\x10\xac\x02\x2a\x13\x0a\x11\x0a\x0a", 9) + "valid/loss" + std::string("\x15\0\0\0\x3f", 5);
  EXPECT_EQ(events[1].substr(9), tail);
}

}  // namespace
}  // namespace strata
