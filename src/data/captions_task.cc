// Captions: a grey image of CIFAR-10 and a sentence that claims what it shows, or what it does not show; does the
// sentence tell the truth?
//
//   .. 256 grey levels .. this small picture does not show a truck
//
// Half of the rows are true, and one in eight denies what it names: a bright or a dark scene (half of the rows), an
// animal or a vehicle, or one of the ten classes (a quarter each). A class that is not shown is one of the other nine,
// all equally likely. Six classes are animals and four are vehicles: of the rows that would name an animal or a
// vehicle, every third image of an animal is left out. So, where all classes have as many images and half of them are
// bright, every sentence is as often true as false, and so is every image: neither says anything alone.
#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>

#include "data/captions.h"
#include "data/cifar10.h"
#include "data/task.h"
#include "util/error.h"
#include "util/random.h"
#include "util/text.h"

namespace strata {
namespace {

constexpr int32_t kClasses = 10, kAnimal = 10, kVehicle = 11, kBright = 12, kDark = 13;
constexpr int64_t kBrightLevel = 121;  // the mean of half of CIFAR-10's images is as high

// A claim and its denial. PICTURE stands for one of kPictures after one of kLooks, NAME for what is claimed.
constexpr const char* kForms[][2] = {
    {"a PICTURE of a NAME", "a PICTURE without a NAME"},
    {"this PICTURE shows a NAME", "this PICTURE does not show a NAME"},
    {"there is a NAME in this PICTURE", "there is no NAME in this PICTURE"},
    {"we see a NAME here", "we do not see a NAME here"},
};
constexpr const char* kPictures[] = {"photo", "picture", "image"};
constexpr const char* kLooks[] = {"", "small ", "grey "};

template <size_t Size>
const char* draw(const char* const (&from)[Size], Random& random) {
  return from[random.below(Size)];
}

std::vector<std::string> split(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

// All words of the captions, in alphabetical order.
const std::vector<std::string>& vocabulary() {
  static const std::vector<std::string> words = [] {
    std::string text = "an";
    for (const auto& form : kForms) text += fmt::format(" {} {}", form[0], form[1]);
    for (const char* picture : kPictures) text += fmt::format(" {}", picture);
    for (const char* look : kLooks) text += fmt::format(" {}", look);
    for (const std::string& name : claimed_names()) text += " " + name;
    std::vector<std::string> all = split(text);
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    std::erase_if(all, [](const std::string& word) { return word == "PICTURE" || word == "NAME"; });
    return all;
  }();
  return words;
}

// Sixteen grey levels are one token, that of their middle: with 256 tokens small models did not begin to learn.
Token level_token(Token grey) { return static_cast<Token>(1 + (grey - 1) / 16 * 16 + 8); }

bool is_animal(int32_t label) {
  static const std::set<std::string> animals = {"bird", "cat", "deer", "dog", "frog", "horse"};
  return animals.count(cifar10_classes()[label]) > 0;
}

bool is_bright(std::span<const Token> pixels) {
  int64_t sum = 0;
  for (const Token token : pixels) sum += token - 1;
  return sum >= kBrightLevel * static_cast<int64_t>(pixels.size());
}

// Every row depends on the seed and its number alone.
Dataset caption_rows(const Dataset& images, int64_t side, uint64_t seed) {
  Dataset data;
  data.bad = images.bad;
  data.problems = images.problems;
  for (int64_t row = 0; row < images.size(); ++row) {
    Random random(mix(seed ^ static_cast<uint64_t>(row)));
    const bool tells_the_truth = random.below(2) == 1, denied = random.below(8) == 0;
    const bool is_shown = tells_the_truth != denied;
    const uint32_t kind = random.below(4);
    const int32_t own = images.rows[row].label;
    Claim claim{own, denied};
    if (kind >= 2) {
      claim.name = is_bright(images.row(row)) == is_shown ? kBright : kDark;
    } else if (kind == 1) {
      if (!is_shown) claim.name = (own + 1 + static_cast<int32_t>(random.below(kClasses - 1))) % kClasses;
    } else {
      if (is_animal(own) && random.below(3) == 0) continue;
      claim.name = is_animal(own) == is_shown ? kAnimal : kVehicle;
    }
    std::vector<Token> tokens = shrink_image(images.row(row), side);
    std::transform(tokens.begin(), tokens.end(), tokens.begin(), level_token);
    const std::vector<Token> words = encode_caption(make_caption(claim, random.next()));
    tokens.insert(tokens.end(), words.begin(), words.end());
    data.add_row(tokens, tells_the_truth ? 1 : 0, captions_length(side));
  }
  return data;
}

}  // namespace

const std::vector<std::string>& claimed_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = cifar10_classes();
    all.insert(all.end(), {"animal", "vehicle", "bright scene", "dark scene"});
    return all;
  }();
  return names;
}

int64_t captions_side(int64_t length) { return cifar10_side(length - kLongestCaption); }

std::string make_caption(const Claim& claim, uint64_t seed) {
  Random random(seed);
  const std::string form = kForms[random.below(std::size(kForms))][claim.denied ? 1 : 0];
  const std::string picture = std::string(draw(kLooks, random)) + draw(kPictures, random);
  std::string caption, before;
  for (const std::string& word : split(form)) {
    const std::string& said = word == "PICTURE" ? picture : word == "NAME" ? claimed_names()[claim.name] : word;
    if (before == "a" && std::string_view("aeiou").find(said[0]) != std::string_view::npos) caption += "n";
    caption += caption.empty() ? said : " " + said;
    before = word;
  }
  return caption;
}

std::vector<Token> encode_caption(std::string_view caption) {
  std::vector<Token> tokens;
  for (const std::string& word : split(std::string(caption))) {
    const auto found = std::lower_bound(vocabulary().begin(), vocabulary().end(), word);
    if (found == vocabulary().end() || *found != word)
      throw data_error("input: unknown word \"{}\" in the caption; expected words such as {}", shown(word),
                       make_caption({5, true}, 0));
    tokens.push_back(static_cast<Token>(kByteVocabulary + (found - vocabulary().begin())));
  }
  return tokens;
}

const std::string& caption_word(Token token) { return vocabulary()[token - kByteVocabulary]; }

std::vector<Token> encode_captioned(std::string_view input, int64_t side) {
  const size_t end = input.find('\n');
  if (end == std::string_view::npos)
    throw data_error("input: expected a caption, a line end and {0} x {0} grey bytes, got one line", side);
  const std::string_view pixels = input.substr(end + 1);
  if (static_cast<int64_t>(pixels.size()) != side * side)
    throw data_error("input: expected an image of {0} x {0} grey bytes after the caption, got {1} bytes", side,
                     pixels.size());
  const std::vector<Token> words = encode_caption(input.substr(0, end));
  if (words.empty() || static_cast<int64_t>(words.size()) > kLongestCaption)
    throw data_error("input: expected a caption of 1 to {} words, got {}", kLongestCaption, words.size());
  std::vector<Token> tokens = byte_tokens(pixels);
  std::transform(tokens.begin(), tokens.end(), tokens.begin(), level_token);
  tokens.insert(tokens.end(), words.begin(), words.end());
  return tokens;
}

TaskData load_captions(const DataConfig& config) {
  if (cifar10_side(config.image_side * config.image_side) == 0)
    throw usage_error("image_side: expected 32, 16 or 8, got {}", config.image_side);
  if (const int64_t longest = captions_length(config.image_side); config.length != longest)
    throw usage_error("length: expected {}, the pixels of an image and the longest caption, got {}", longest,
                      config.length);
  TaskData images = read_cifar10(config.data), data;
  data.vocabulary = kCaptionsVocabulary;
  data.labels = {"no", "yes"};
  data.files = images.files;
  const uint64_t seed = mix(static_cast<uint64_t>(config.data_seed));
  data.train = caption_rows(images.train, config.image_side, mix(seed));
  data.test = caption_rows(images.test, config.image_side, mix(seed + 1));
  return data;
}

}  // namespace strata
