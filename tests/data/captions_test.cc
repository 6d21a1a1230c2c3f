// Captions: rows that are true as often as false, whatever is read alone; images in blocks; trees of image and words.
#include "data/captions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "data/cifar10.h"
#include "data/loader.h"
#include "data/support.h"
#include "data/task.h"
#include "data/trees.h"

namespace strata {
namespace {

// Images of one grey level, which says the class; those of classes from 5 on are bright.
std::string even_images(int rows) {
  std::string bytes;
  for (int row = 0; row < rows; ++row) {
    bytes += static_cast<char>(row % 10);
    bytes += std::string(1024, static_cast<char>(16 * (row % 10 + (row % 10 < 5 ? 0 : 4))));
  }
  return bytes;
}

DataConfig config_of(const TempFolder& folder, int64_t side = 8) {
  DataConfig config;
  config.task = "captions";
  config.data = folder.path().string();
  config.image_side = side;
  config.valid_share = 0;
  return config;
}

std::string caption_of(std::span<const Token> row, int64_t side) {
  std::string caption;
  for (const std::string& word : show_tokens("captions", row.subspan(side * side)))
    caption += (caption.empty() ? "" : " ") + word;
  return caption;
}

const std::vector<std::string> kNames = {"airplane", "automobile", "bird",  "cat",    "deer",    "dog",    "frog",
                                         "horse",    "ship",       "truck", "animal", "vehicle", "bright", "dark"};

bool is_of(int name, int shown) {
  const bool is_vehicle = shown < 2 || shown > 7;
  return name == shown || (name == 10 && !is_vehicle) || (name == 11 && is_vehicle) || (name == 12 && shown >= 5) ||
         (name == 13 && shown < 5);
}

// What a sentence claims, read without the code that makes it.
Claim claim_of(const std::string& caption) {
  Claim claim{-1, false};
  std::istringstream words(caption);
  for (std::string word; words >> word;) {
    claim.denied |= word == "not" || word == "no" || word == "without";
    for (size_t c = 0; c < kNames.size(); ++c) {
      if (word == kNames[c]) claim.name = static_cast<int32_t>(c);
    }
  }
  return claim;
}

struct Count {
  double rows = 0, yes = 0;
  // Of fair coins, the deviation is sqrt(rows) / 2; 5 of them happen once in 1.7 million counts.
  bool is_fair() const { return std::abs(yes - rows / 2) <= 5 * std::sqrt(rows) / 2; }
};

TEST(Captions, TellTheTruthWhereTheLabelSaysAndNothingAlone) {
  const TempFolder folder;
  constexpr int kRows = 30000;
  folder.write("train.bin", even_images(kRows));
  folder.write("test.bin", even_images(10) + "\x01");
  const TaskData data = load_task(config_of(folder));
  // 1/4 of the rows would name an animal or a vehicle, 0.6 of them show animals, and every third of these is missing.
  EXPECT_NEAR(static_cast<double>(data.train.size()), 0.95 * kRows, 5 * std::sqrt(0.0475 * kRows));
  EXPECT_EQ(data.labels, (std::vector<std::string>{"no", "yes"}));
  std::map<std::string, Count> captions, words;
  std::map<int, Count> classes;
  std::map<std::pair<int, int>, double> false_claims;  // class and what is said of it instead
  Count all;
  for (int64_t row = 0; row < data.train.size(); ++row) {
    const std::string caption = caption_of(data.train.row(row), 8);
    const Claim claim = claim_of(caption);
    const int level = (data.train.row(row)[0] - 1) / 16, shown = level < 5 ? level : level - 4,
              label = data.train.rows[row].label;
    ASSERT_EQ(label == 1, is_of(claim.name, shown) != claim.denied) << caption;
    for (Count* count : {&captions[caption], &classes[shown], &all}) ++count->rows, count->yes += label;
    if (claim.name < 10 && claim.name != shown) ++false_claims[{shown, claim.name}];
  }
  EXPECT_TRUE(all.is_fair()) << all.yes;
  for (const auto& [caption, count] : captions) EXPECT_TRUE(count.is_fair()) << caption << " " << count.yes;
  for (const auto& [shown, count] : classes) EXPECT_TRUE(count.is_fair()) << shown << " " << count.yes;
  // The sums over wordings are a sharper test.
  std::map<std::pair<int, bool>, Count> claims;
  for (const auto& [caption, count] : captions) {
    Count& sum = claims[{claim_of(caption).name, claim_of(caption).denied}];
    sum.rows += count.rows, sum.yes += count.yes;
  }
  EXPECT_EQ(claims.size(), 28U) << "every name, claimed and denied";
  for (const auto& [claim, count] : claims) EXPECT_TRUE(count.is_fair()) << claim.first << " " << count.yes;
  EXPECT_EQ(false_claims.size(), 90U);
  const double expected = kRows / 8.0 / 90;
  for (const auto& [pair, count] : false_claims)
    EXPECT_NEAR(count, expected, 5 * std::sqrt(expected)) << pair.first << " " << pair.second;
  EXPECT_EQ(data.test.problems,
            std::vector<std::string>{"test.bin: the last row is incomplete (1 bytes, expected 1025)"});
}

TEST(Captions, DependOnSeedAndRowAlone) {
  const TempFolder folder, longer;
  folder.write("train.bin", even_images(50));
  longer.write("train.bin", even_images(80));
  for (const TempFolder* f : {&folder, &longer}) f->write("test.bin", even_images(20));
  auto captions = [](const TaskData& data, int64_t side) {
    std::vector<std::string> all;
    for (int64_t row = 0; row < 40; ++row) all.push_back(caption_of(data.train.row(row), side));
    return all;
  };
  DataConfig config = config_of(folder);
  const TaskData data = load_task(config);
  const std::vector<std::string> first = captions(data, 8);
  EXPECT_EQ(first, captions(load_task(config), 8));
  EXPECT_EQ(first, captions(load_task(config_of(longer)), 8)) << "not on the number of rows";
  EXPECT_EQ(first, captions(load_task(config_of(folder, 32)), 32)) << "not on the side";
  EXPECT_NE(first[0] + first[1], caption_of(data.test.row(0), 8) + caption_of(data.test.row(1), 8));
  // The same on every machine.
  EXPECT_EQ(make_caption({0, false}, 1), "we see an airplane here");
  EXPECT_EQ(make_caption({5, true}, 2), "a photo without a dog");
  config.data_seed = 2;
  EXPECT_NE(first, captions(load_task(config), 8));
}

TEST(Captions, PixelsAreMeansOfBlocks) {
  std::string image(1024, '\0');
  for (int p = 0; p < 1024; ++p) image[p] = static_cast<char>(p * 37 % 251 + (p == 77 ? 4 : 0));
  const TempFolder folder;
  folder.write("train.bin", '\0' + image);
  folder.write("test.bin", '\x08' + image.substr(1) + '\xff');
  for (const int64_t side : {32, 16, 8}) {
    const TaskData data = load_task(config_of(folder, side));
    EXPECT_EQ(data.length, side * side + 9);
    EXPECT_EQ(data.vocabulary, 257 + 37);
    const int64_t block = 32 / side;
    for (int64_t p = 0; p < side * side; ++p) {
      double sum = 0;
      for (int64_t y = 0; y < block; ++y) {
        for (int64_t x = 0; x < block; ++x)
          sum += static_cast<uint8_t>(image[(p / side * block + y) * 32 + p % side * block + x]);
      }
      const double mean = sum / static_cast<double>(block * block);
      ASSERT_EQ(data.train.row(0)[p], 1 + 8 + 16 * std::floor(std::floor(mean + 0.5) / 16)) << side << " " << p;
    }
    EXPECT_GE(data.train.row(0)[side * side], kByteVocabulary);
  }
}

TEST(Captions, WordsAreThoseOfTheVocabulary) {
  std::set<std::string> words;
  size_t longest = 0;
  for (int32_t name = 0; name < 14; ++name) {
    for (uint64_t seed = 0; seed < 1000; ++seed) {
      const std::string caption = make_caption({name, seed % 2 == 0}, seed);
      const std::vector<Token> tokens = encode_caption(caption);
      longest = std::max(longest, tokens.size());
      std::string again;
      for (const Token token : tokens) {
        ASSERT_LT(token, kCaptionsVocabulary);
        words.insert(caption_word(token));
        again += (again.empty() ? "" : " ") + caption_word(token);
      }
      ASSERT_EQ(again, caption);
      ASSERT_EQ(contains(caption, "a airplane") || contains(caption, "a automobile") || contains(caption, "a image"),
                false)
          << caption;
      ASSERT_EQ(contains(caption, "an dog") || contains(caption, "an small"), false) << caption;
    }
  }
  EXPECT_EQ(static_cast<int64_t>(words.size()), kCaptionVocabulary) << "every word is used, and has a token";
  EXPECT_EQ(static_cast<int64_t>(longest), kLongestCaption);
}

// ------------------------------------------------------------------------------------------------- inputs

TEST(Captions, InputsAreACaptionAndAnImage) {
  const std::string caption = "this picture does not show a truck";
  std::string pixels(64, '\x05');
  pixels[3] = '\n';  // a grey level like any other
  const std::vector<Token> tokens = encode_input("captions", caption + "\n" + pixels, 73);
  EXPECT_EQ(std::vector<Token>(tokens.begin(), tokens.begin() + 5), (std::vector<Token>{9, 9, 9, 9, 9}));
  EXPECT_EQ(caption_of(tokens, 8), caption);
  EXPECT_EQ(show_tokens("captions", tokens)[3], "8");
  auto refusal = [](const std::string& input, int64_t length) {
    return error_of(ExitCode::kData, [&] { encode_input("captions", input, length); });
  };
  EXPECT_EQ(refusal(caption, 73), "input: expected a caption, a line end and 8 x 8 grey bytes, got one line");
  EXPECT_EQ(refusal(caption + "\n" + pixels, 265),
            "input: expected an image of 16 x 16 grey bytes after the caption, got 64 bytes");
  EXPECT_EQ(refusal(caption + "\n" + pixels + "\n", 73),
            "input: expected an image of 8 x 8 grey bytes after the caption, got 65 bytes");
  EXPECT_SAYS(refusal("a photo of a zebra\n" + pixels, 73), "input: unknown word \"zebra\" in the caption");
  EXPECT_EQ(refusal("\n" + pixels, 73), "input: expected a caption of 1 to 9 words, got 0");
  EXPECT_EQ(refusal("a a a a a a a a a a\n" + pixels, 73), "input: expected a caption of 1 to 9 words, got 10");
}

TEST(Captions, SidesAndLengths) {
  const TempFolder folder;
  folder.write("train.bin", even_images(20));
  folder.write("test.bin", even_images(10));
  EXPECT_EQ(captions_side(1033), 32);
  EXPECT_EQ(captions_side(265), 16);
  EXPECT_EQ(captions_side(73), 8);
  EXPECT_EQ(captions_side(1024), 0);
  DataConfig config = config_of(folder, 12);
  auto refusal = [&] { return error_of(ExitCode::kUsage, [&] { load_task(config); }); };
  EXPECT_EQ(refusal(), "image_side: expected 32, 16 or 8, got 12");
  config.image_side = 16, config.length = 256;
  EXPECT_EQ(refusal(), "length: expected 265, the pixels of an image and the longest caption, got 256");
  config.length = 265;
  EXPECT_GT(load_task(config).train.size(), 5);
  config.tokens = "words";
  EXPECT_SAYS(refusal(), "tokens: only the texts of imdb and table can be read as words");
}

// ------------------------------------------------------------------------------------------------- trees

std::vector<Token> captioned(int64_t side, int64_t words) {
  std::vector<Token> tokens;
  for (int64_t p = 0; p < side * side; ++p) tokens.push_back(static_cast<Token>(1 + p % 256));
  for (int64_t w = 0; w < words; ++w) tokens.push_back(static_cast<Token>(kByteVocabulary + w));
  return tokens;
}

TEST(Captions, TreesHaveAnImageAndACaption) {
  for (const auto& [side, words, branching] :
       {std::tuple<int64_t, int64_t, int64_t>{4, 5, 16}, {8, 8, 3}, {16, 7, 2}, {1, 1, 2}, {3, 4, 4}}) {
    TreeMaker maker("captioned", branching);
    const std::vector<Token> tokens = captioned(side, words);
    const std::shared_ptr<const Tree> tree = maker.tree(tokens);
    ASSERT_EQ(tree->tokens(), side * side + words);
    const std::vector<Span> spans = tree->spans();
    ASSERT_EQ(tree->child_begin()[1], 2) << "the root has two children";
    EXPECT_EQ(tree->children()[0], ~1);
    EXPECT_EQ(tree->children()[1], ~2);
    EXPECT_EQ(spans[1], (Span{0, side * side}));
    EXPECT_EQ(spans[2], (Span{side * side, side * side + words}));
    // Each domain has a table of its own: words, the column of image and caption, pixels (cut ones are columns too).
    EXPECT_EQ(tree->kind(0), 1);
    for (int64_t family = 1; family < tree->families(); ++family) {
      if (spans[family].begin >= side * side) {
        EXPECT_EQ(tree->kind(family), 0);
      } else if (side == 4 || side == 8 || side == 16) {
        EXPECT_EQ(tree->kind(family), 2);
      }
    }
    EXPECT_LE(tree->position_tables(), maker.position_tables());
    EXPECT_LE(tree->largest_family(), maker.position_places());
    // The families of the image are those of its quadtree, with the same children.
    Tree image;
    ASSERT_TRUE(quadtree(side, side, &image).ok());
    std::multiset<std::pair<int64_t, int64_t>> expected, found;
    for (const Span span : image.spans()) expected.insert({span.begin, span.end});
    for (int64_t family = 1; family < tree->families(); ++family) {
      if (spans[family].end <= side * side) found.insert({spans[family].begin, spans[family].end});
    }
    EXPECT_EQ(found, expected);
    // Pixels in the order of the quadtree, the words after them.
    std::vector<int64_t> order = quadtree_order(side, side);
    for (int64_t w = 0; w < words; ++w) order.push_back(side * side + w);
    EXPECT_EQ(maker.order(tokens), order);
  }
  EXPECT_EQ(TreeMaker("captioned", 4).tree(captioned(0, 5))->tokens(), 5);
  EXPECT_EQ(TreeMaker("captioned", 4).tree(captioned(4, 0))->tokens(), 16);
  std::vector<Token> torn = captioned(4, 3);
  torn.erase(torn.begin());
  EXPECT_EQ(error_of(ExitCode::kData, [&] { TreeMaker("captioned", 4).tree(torn); }),
            "tree: expected a square image for a quadtree, got 15 pixels");
}

TEST(Captions, BatchesHaveTheOrderOfTheTree) {
  Dataset data;
  data.add_row(captioned(4, 3), 1, 100);
  data.add_row(captioned(4, 5), 0, 100);
  LoaderOptions options;
  options.trees = std::make_shared<TreeMaker>("captioned", 4);
  const Batch batch = make_batch(data, options, 0);
  ASSERT_EQ(batch.width, 21);
  const std::vector<int64_t> order = quadtree_order(4, 4);
  for (int64_t t = 0; t < 16; ++t) EXPECT_EQ(batch.tokens[21 + t], 1 + order[t]);
  for (int64_t w = 0; w < 5; ++w) EXPECT_EQ(batch.tokens[21 + 16 + w], kByteVocabulary + w);
  EXPECT_EQ(batch.tokens[19], kPad);
  EXPECT_EQ(batch.trees[0]->tokens(), 19);
}

}  // namespace
}  // namespace strata
