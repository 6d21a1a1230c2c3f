// Variants, tables and verdicts of a comparison.
#include "compare/compare.h"

#include <gtest/gtest.h>

#include "compare/tables.h"
#include "util/error.h"
#include "util/scipy_cases.h"

namespace strata {
namespace {

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
  EXPECT_EQ(parse_variants({"hkt:heads=2:batch=8"}, base)[0].config.train.batch, 8);
  EXPECT_THROW(parse_variants({"hkt:jitter=2"}, base), Error) << "of images, and the task is listops";
}

// Runs are paired: data, seed and the rest of the model are the same for all.
TEST(Compare, VariantsShareDataAndSeed) {
  for (const char* name : {"flat:train_rows=20", "hkt:data_seed=5", "hkt:task=imdb", "hkt:seed=3", "hkt:layers=3",
                           "hkt:model_size=8", "hkt:attention=flat", "hkt:device=cuda", "hkt:data=x"}) {
    try {
      parse_variants({name}, RunConfig());
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      const std::string message = error.what(), option(name + std::string(name).find(':') + 1);
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      EXPECT_NE(message.find(option.substr(0, option.find('=')) + " must be the same"), std::string::npos) << message;
      EXPECT_NE(message.find("Options that may differ are "), std::string::npos) << message;
      EXPECT_NE(message.find("learning_rate"), std::string::npos) << message;
      EXPECT_EQ(message.find(" seed,"), std::string::npos) << message;
    }
  }
}

TEST(Compare, SummaryTablesAndVerdictsAgree) {
  const Json results =
      summarize({{"flat", kScipy[0].a, 100, 1.0, 10.0}, {"hkt", kScipy[0].b, 110, 1.3125, 12.0, {50, 51, 52}}},
                "test accuracy, %", false);
  EXPECT_DOUBLE_EQ(results["attentions"][1]["time_ratio"], 1.2);
  EXPECT_NEAR(results["pairs"][0]["p"].get<double>(), kScipy[0].p, 1e-12);
  const std::string table = to_markdown(results);
  EXPECT_NE(table.find("| hkt | 46.73 ± 0.90 | 51.00 | 110 | 1.3125x | 1.20x |"), std::string::npos) << table;
  EXPECT_NE(table.find("| hkt - flat | +9.30 | +4.64 .. +13.96 | 8.59 | 0.0133 | 0.0133 |"), std::string::npos)
      << table;
  EXPECT_EQ(verdicts(results).at(0), "hkt beats flat by 9.30 (p = 0.0133, 95% interval +4.64 .. +13.96)");
  EXPECT_NE(to_csv(results).find("hkt,3,45.7,52,110,1.3125,12"), std::string::npos) << to_csv(results);
  Json later = results;  // seeds are numbered from --seed on
  later["first_seed"] = 7;
  EXPECT_NE(to_csv(later).find("hkt,9,45.7,52,110,1.3125,12"), std::string::npos) << to_csv(later);
}

// Language models by place, and answers by distance: means over seeds.
TEST(Compare, PartsAreMeansOverSeeds) {
  auto parts = [](double loss) {
    return Json{{{"name", "0"}, {"loss", loss}, {"accuracy", loss / 4}, {"targets", 9}}};
  };
  const Json results = summarize({{"flat", {2.0, 3.0}, 1, 1, 1, {}, {parts(1.0), parts(2.0)}}, {"hkt", {2.0, 2.5}}},
                                 "test bits per byte", true);
  EXPECT_EQ(results["attentions"][0]["parts"], (Json{{{"name", "0"}, {"loss", 1.5}, {"accuracy", 0.375}}}));
  EXPECT_FALSE(results["attentions"][1].contains("parts"));
}

// Terminal, Markdown and CSV print the same cells.
TEST(Compare, TablesForATerminal) {
  Json results =
      summarize({{"flat", kScipy[0].a, 100, 1.0, 10.0}, {"hkt:levels=2", kScipy[0].b, 110, 1.25, 12.0, {50, 51, 52}}},
                "test accuracy, %", false);
  results["task"] = "listops";
  EXPECT_EQ(to_text(results),
            "listops         test accuracy, %  validation  parameters  score products  step time\n"
            "flat               37.43 +- 1.01           -         100         1.0000x      1.00x\n"
            "hkt:levels=2       46.73 +- 0.90       51.00         110         1.2500x      1.20x\n");
  EXPECT_EQ(attention_table(results).rows[1][1], "46.73 ± 0.90");
  EXPECT_EQ(pair_table(results).rows.size(), 1);
  EXPECT_EQ(seed_table(results).rows.size(), 6);
  const Json single = summarize({{"a", {2.0}, 1, 1, 1}}, "m", false);
  EXPECT_EQ(attention_table(single).rows[0][1], "2.00 ± -") << "one seed has no deviation";
}

// Several pairs: a difference counts if its corrected p is small.
TEST(Compare, ManyPairsAreCorrected) {
  const std::vector<double> base = {10, 11, 12}, better = {12.0, 13.1, 13.9}, much = {20.3, 21.1, 21.9};
  const Json results =
      summarize({{"a", base, 1, 1, 1}, {"b", better, 1, 1, 1}, {"c", much, 1, 1, 1}, {"d", {10, 11.3, 11.9}, 1, 1, 1}},
                "m", false);
  std::vector<double> p, corrected;
  for (const Json& pair : results["pairs"]) {
    p.push_back(pair["p"]);
    corrected.push_back(pair["p_holm"]);
  }
  EXPECT_EQ(p.size(), 6U);
  EXPECT_EQ(corrected, holm(p));
  for (size_t i = 0; i < p.size(); ++i) {
    const std::string text = verdicts(results)[i];
    EXPECT_EQ(text.find("no significant difference") == std::string::npos, corrected[i] < 0.05) << text;
    EXPECT_NE(text.find(", Holm "), std::string::npos) << text;
  }
  Json earlier = results;  // files of earlier versions
  for (Json& pair : earlier["pairs"]) pair.erase("p_holm");
  EXPECT_EQ(verdicts(earlier)[0].find("Holm"), std::string::npos);
  EXPECT_NE(to_markdown(earlier).find("| - |"), std::string::npos);
}

// Of 66 pairs only those with the first attention have a line.
TEST(Compare, VerdictsOfManyPairs) {
  std::vector<AttentionSummary> attentions;
  for (double n = 0; n < 12; ++n)
    attentions.push_back({fmt::format("a{}", n), {n + 0.01 * n * n, n + 0.1, n - 0.1}, 1, 1, 1});
  attentions[11].scores = {500.0, 500.2, 500.4};
  const Json results = summarize(attentions, "m", false);
  int64_t sure = 0;
  for (const Json& pair : results["pairs"]) sure += pair["from"] != "a0" && pair["p_holm"].get<double>() < 0.05;
  const auto lines = verdicts(results);
  ASSERT_EQ(lines.size(), 12U);
  for (size_t n = 0; n < 11; ++n) EXPECT_NE(lines[n].find("a0"), std::string::npos) << lines[n];
  EXPECT_GT(sure, 9);
  EXPECT_EQ(lines[11],
            fmt::format("55 pairs without a0, of which {} differ significantly, are in the table of pairs", sure));
}

TEST(Compare, VerdictsOfDoubtAndOfSingleSeeds) {
  const Json unsure = summarize({{"a", kScipy[2].a, 1, 1, 1}, {"b", kScipy[2].b, 1, 1, 1}}, "m", false);
  EXPECT_NE(verdicts(unsure).at(0).find("no significant difference between b and a: +0.03 (p = 0.7608"),
            std::string::npos)
      << verdicts(unsure).at(0);
  const Json single = summarize({{"a", {2.0}, 1, 1, 1}, {"b", {1.5}, 1, 1, 1}}, "test bits per byte", true);
  EXPECT_EQ(verdicts(single).at(0), "b beats a by 0.50 (too few seeds to test)");
  const Json lost = summarize({{"b", kScipy[0].b, 1, 1, 1}, {"a", kScipy[0].a, 1, 1, 1}}, "m", false);
  EXPECT_EQ(verdicts(lost).at(0), "b beats a by 9.30 (p = 0.0133, 95% interval +4.64 .. +13.96)") << "first or second";
  const Json clear = summarize({{"a", {1, 2, 3, 4}, 1, 1, 1}, {"b", {11, 12.01, 13, 14}, 1, 1, 1}}, "m", false);
  EXPECT_EQ(verdicts(clear).at(0).rfind("b beats a by 10.00 (p < 0.0001, ", 0), 0U) << verdicts(clear).at(0);
  const Json equal = summarize({{"a", {2.0}, 1, 1, 1}, {"b", {2.0}, 1, 1, 1}}, "m", false);
  EXPECT_EQ(verdicts(equal).at(0), "b equals a (too few seeds to test)");
  const Json same = summarize({{"a", {2.0, 3.0}, 1, 1, 1}, {"b", {2.0, 3.0}, 1, 1, 1}}, "m", false);
  EXPECT_EQ(verdicts(same).at(0), "b equals a (the same in every seed: nothing to test)");
  EXPECT_TRUE(single["attentions"][0]["standard_deviation"].is_null());
}

}  // namespace
}  // namespace strata
