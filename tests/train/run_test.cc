// What training needs and torch does not: statistics, schedules, metrics, event files, tables of results.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>

#include "compare/compare.h"
#include "train/event_file.h"
#include "train/metrics.h"
#include "train/schedule.h"
#include "util/error.h"
#include "util/progress.h"
#include "util/statistics.h"

namespace strata {
namespace {

fs::path fresh_folder(const std::string& name) {
  const fs::path folder = fs::temp_directory_path() / ("strata_run_test_" + name);
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

struct TestCase {
  std::vector<double> a, b;
  double difference, t, p, low, high, deviation_of_a;
};

// scipy.stats.ttest_rel(b, a) and its confidence_interval(0.95), numpy.std(a, ddof=1); SciPy 1.17.1.
const TestCase kScipy[] = {
    {{37.15, 36.6, 38.55},
     {47.3, 47.2, 45.7},
     9.3000000000000025,
     8.5886819956367653,
     0.013286897489870232,
     4.6409998871772995,
     13.959000112822705,
     1.0054020754570427},
    {{62.72, 63.1, 61.9, 62.4, 63.3},
     {70.19, 69.8, 70.9, 70.2, 71.5},
     7.8340000000000014,
     20.526711462175712,
     3.3268503205009793e-05,
     6.7743723536427574,
     8.8936276463572455,
     0.55882018574851078},
    {{1, 2, 3, 4},
     {1.1, 1.9, 3.2, 3.9},
     0.025000000000000022,
     0.33333333333333331,
     0.76082037551451065,
     -0.21368347289627826,
     0.2636834728962783,
     1.2909944487358056},
    {{0.5, 0.25},
     {0.75, 0.125},
     0.0625,
     0.33333333333333331,
     0.79516723530086653,
     -2.3199133880327549,
     2.4449133880327549,
     0.17677669529663689},
};

TEST(Statistics, PairedTestAgreesWithScipy) {
  for (const TestCase& c : kScipy) {
    const PairedTest test = paired_t_test(c.a, c.b);
    ASSERT_TRUE(test.valid);
    EXPECT_NEAR(test.difference, c.difference, 1e-12);
    EXPECT_NEAR(test.t, c.t, 1e-9 * std::abs(c.t));
    EXPECT_NEAR(test.p, c.p, 1e-9 * c.p);
    EXPECT_NEAR(test.low, c.low, 1e-9);
    EXPECT_NEAR(test.high, c.high, 1e-9);
    EXPECT_NEAR(standard_deviation(c.a), c.deviation_of_a, 1e-12);
  }
}

TEST(Statistics, SaysWhenThereIsNothingToTest) {
  EXPECT_FALSE(paired_t_test({1}, {2}).valid);
  EXPECT_EQ(paired_t_test({1}, {2}).difference, 1);
  EXPECT_FALSE(paired_t_test({1, 2, 3}, {2, 3, 4}).valid);              // no spread
  EXPECT_FALSE(paired_t_test({0.1, 0.2, 0.3}, {0.4, 0.5, 0.6}).valid);  // none but rounding's
  EXPECT_FALSE(paired_t_test({1, 2}, {1, 2}).valid);
  EXPECT_THROW(paired_t_test({1, 2}, {1}), Error);
  EXPECT_TRUE(std::isnan(standard_deviation({1})));
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

TEST(Progress, Words) {
  EXPECT_EQ(duration(65.4), "1:05");
  EXPECT_EQ(duration(7209), "2:00:09");
  EXPECT_EQ(duration(-1), "0:00");
  EXPECT_EQ(bar(0.5, 4), "[##--]");
  EXPECT_EQ(bar(1.5, 4), "[####]");
}

TEST(Compare, VariantsTakeOptionsOfTheirOwn) {
  RunConfig base;
  base.model.levels = 3;
  const auto variants = parse_variants({"flat", "hkt:levels=2:filters=dense", "hsa:tree=balanced"}, base);
  ASSERT_EQ(variants.size(), 3);
  EXPECT_EQ(variants[0].config.model.attention, "flat");
  EXPECT_EQ(variants[1].config.model.levels, 2);
  EXPECT_EQ(variants[1].config.model.filters, "dense");
  EXPECT_EQ(variants[1].config.model.attention, "hkt");
  EXPECT_EQ(variants[2].config.model.tree, "balanced");
  for (const char* bad : {"linear", "hkt:levels", "hkt:level=2", "hkt:levels=0", ""}) {
    EXPECT_THROW(parse_variants({bad}, base), Error) << bad;
  }
  EXPECT_THROW(parse_variants({"hkt", "hkt"}, base), Error);
  EXPECT_THROW(parse_variants({"hkt:jitter=2"}, base), Error) << "of images, and the task is listops";
}

TEST(Compare, SummaryTablesAndVerdictsAgree) {
  const Json results =
      summarize({{"flat", kScipy[0].a, 100, 1.0, 10.0}, {"hkt", kScipy[0].b, 110, 1.3125, 12.0, {50, 51, 52}}},
                "test accuracy, %", false);
  EXPECT_DOUBLE_EQ(results["attentions"][1]["time_ratio"], 1.2);
  EXPECT_NEAR(results["pairs"][0]["p"].get<double>(), kScipy[0].p, 1e-12);
  const std::string table = to_markdown(results);
  EXPECT_NE(table.find("| hkt | 46.73 ± 0.90 | 51.00 | 110 | 1.3125x | 1.20x |"), std::string::npos) << table;
  EXPECT_NE(table.find("| hkt - flat | +9.30 | +4.64 .. +13.96 | 8.59 | 0.0133 |"), std::string::npos) << table;
  EXPECT_EQ(verdicts(results).at(0), "hkt beats flat by 9.30 (p = 0.0133, 95% interval +4.64 .. +13.96)");
  EXPECT_NE(to_csv(results).find("hkt,3,45.7,52,110,1.3125,12"), std::string::npos) << to_csv(results);
  Json later = results;  // seeds are numbered from --seed on
  later["first_seed"] = 7;
  EXPECT_NE(to_csv(later).find("hkt,9,45.7,52,110,1.3125,12"), std::string::npos) << to_csv(later);
}

TEST(Compare, VerdictsOfDoubtAndOfSingleSeeds) {
  const Json unsure = summarize({{"a", kScipy[2].a, 1, 1, 1}, {"b", kScipy[2].b, 1, 1, 1}}, "m", false);
  EXPECT_NE(verdicts(unsure).at(0).find("cannot be told apart"), std::string::npos);
  const Json single = summarize({{"a", {2.0}, 1, 1, 1}, {"b", {1.5}, 1, 1, 1}}, "test bits per byte", true);
  EXPECT_EQ(verdicts(single).at(0), "b beats a by 0.50 (too few seeds to test)");
  const Json lost = summarize({{"b", kScipy[0].b, 1, 1, 1}, {"a", kScipy[0].a, 1, 1, 1}}, "m", false);
  EXPECT_EQ(verdicts(lost).at(0), "b beats a by 9.30 (p = 0.0133, 95% interval +4.64 .. +13.96)") << "first or second";
  const Json equal = summarize({{"a", {2.0}, 1, 1, 1}, {"b", {2.0}, 1, 1, 1}}, "m", false);
  EXPECT_EQ(verdicts(equal).at(0), "b equals a (too few seeds to test)");
  EXPECT_TRUE(single["attentions"][0]["standard_deviation"].is_null());
}

}  // namespace
}  // namespace strata
