#include "train/answers.h"

#include <gtest/gtest.h>

#include <cmath>

#include "data/listops.h"
#include "data/task.h"

namespace strata {
namespace {

TaskData text_data(const std::vector<std::string>& texts, std::vector<std::string> labels) {
  TaskData data;
  data.task = "imdb";
  data.labels = std::move(labels);
  for (const std::string& text : texts) data.test.add_row(byte_tokens(text), 0, 1 << 20);
  return data;
}

Answer answer(int label, int predicted, double probability_of_label) {
  return {label, predicted, 1 - probability_of_label, -std::log(probability_of_label)};
}

TEST(Answers, CountsConfusionsAndScores) {
  const TaskData data = text_data({"a", "b", "c", "d", "e"}, {"neg", "pos", "never"});
  const Json json = describe_answers(
      {answer(0, 0, 0.9), answer(0, 1, 0.4), answer(1, 1, 0.8), answer(1, 1, 0.7), answer(0, 1, 0.1)}, data, data.test);
  EXPECT_EQ(json["confusion"], Json::parse("[[1, 2, 0], [0, 2, 0], [0, 0, 0]]"));
  const Json& classes = json["classes"];
  ASSERT_EQ(classes.size(), 3U);
  EXPECT_EQ(classes[0]["label"], "neg");
  EXPECT_EQ(classes[0]["rows"], 3);
  EXPECT_EQ(classes[0]["predicted"], 1);
  EXPECT_DOUBLE_EQ(classes[0]["precision"], 1.0);
  EXPECT_DOUBLE_EQ(classes[0]["recall"], 1.0 / 3);
  EXPECT_DOUBLE_EQ(classes[0]["f1"], 2 * 1.0 * (1.0 / 3) / (1.0 + 1.0 / 3));  // the harmonic mean
  EXPECT_DOUBLE_EQ(classes[1]["precision"], 0.5);
  EXPECT_DOUBLE_EQ(classes[1]["recall"], 1.0);
  for (const char* score : {"precision", "recall", "f1"}) EXPECT_TRUE(classes[2][score].is_null()) << score;
}

TEST(Answers, TheWorstErrorsComeFirst) {
  const std::string escape = std::string("<b>\x1b[31m") + "\xff";
  const TaskData data = text_data({"right", "small", escape, "caf\xc3\xa9"}, {"neg", "pos"});
  const Json worst = describe_answers({answer(0, 0, 0.6), answer(0, 1, 0.4), answer(1, 0, 0.01), answer(1, 0, 0.2)},
                                      data, data.test)["worst"];
  ASSERT_EQ(worst.size(), 3U);
  EXPECT_EQ(worst[0]["row"], 2);
  EXPECT_EQ(worst[0]["label"], "pos");
  EXPECT_EQ(worst[0]["predicted"], "neg");
  EXPECT_EQ(worst[0]["text"], "<b>\\x1b[31m\\xff");
  EXPECT_DOUBLE_EQ(worst[0]["loss"], -std::log(0.01));
  EXPECT_EQ(worst[1]["text"], "caf\xc3\xa9");
  EXPECT_EQ(worst[2]["row"], 1);
}

TEST(Answers, LimitsOfSize) {
  std::vector<std::string> labels(65, "x"), texts(30, std::string(5000, 'y'));
  const TaskData data = text_data(texts, labels);
  const Json json = describe_answers(std::vector<Answer>(30, answer(0, 1, 0.3)), data, data.test);
  EXPECT_FALSE(json.contains("confusion"));
  EXPECT_EQ(json["classes"].size(), 65U);
  EXPECT_EQ(json["worst"].size(), 10U);
  EXPECT_EQ(json["worst"][9]["row"], 9);  // of equal ones the first
  EXPECT_LT(json["worst"][0]["text"].get<std::string>().size(), 500U);
  EXPECT_NE(class_table(json).find("the 20 classes of 65 with the lowest F1"), std::string::npos);
}

// A table of classes by classes would not fit into memory.
TEST(Answers, ManyClasses) {
  const TaskData data = text_data({"a"}, std::vector<std::string>(300000, "x"));
  EXPECT_EQ(describe_answers({answer(0, 1, 0.3)}, data, data.test)["classes"].size(), 300000U);
}

TEST(Answers, WordsAreShownWithSpacesAndPixelsNotAtAll) {
  TaskData data;
  data.task = "listops";
  data.labels = {"0", "1"};
  data.test.add_row(encode_input("listops", "[MAX 2 7 ]", 100), 0, 100);
  EXPECT_EQ(describe_answers({answer(0, 1, 0.3)}, data, data.test)["worst"][0]["text"], "[MAX 2 7 ]");
  data.task = "cifar10";
  EXPECT_FALSE(describe_answers({answer(0, 1, 0.3)}, data, data.test)["worst"][0].contains("text"));
  data.task = "captions";
  data.test = {};
  data.test.add_row(encode_input("captions", "a photo of a dog\n" + std::string(64, 'x'), 73), 0, 73);
  EXPECT_EQ(describe_answers({answer(0, 1, 0.3)}, data, data.test)["worst"][0]["text"], "a photo of a dog");
}

}  // namespace
}  // namespace strata
