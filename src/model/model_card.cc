#include "model/model_card.h"

#include <algorithm>

#include "data/captions.h"
#include "data/cifar10.h"
#include "data/listops.h"
#include "data/pieces.h"
#include "data/task.h"
#include "data/trees.h"
#include "util/error.h"
#include "util/text.h"

namespace strata {
namespace {

// Predictions look up words and labels by their numbers, and trees by the words, so these must fit together.
void check(const ModelCard& card, const std::string& where) {
  auto require = [&](bool holds, const char* expected) {
    if (!holds) throw output_error("{}: the model header is damaged: expected {}", where, expected);
  };
  const std::vector<Task>& known = tasks();
  const auto task = std::find_if(known.begin(), known.end(), [&](const Task& t) { return t.name == card.task; });
  require(task != known.end(), "a known task");
  require(card.shape.next_token == (task->goal == Goal::kNextToken), "next_token as the task says");
  require(card.tree == "none" || std::count(tree_kinds().begin(), tree_kinds().end(), card.tree) == 1,
          "a known kind of tree");
  const int64_t vocabulary = !card.words.empty()       ? kUnknownWord + 1 + static_cast<int64_t>(card.words.size())
                             : card.task == "listops"  ? kListopsVocabulary
                             : card.task == "captions" ? kCaptionsVocabulary
                                                       : kByteVocabulary;
  require(card.task != "cifar10" || cifar10_side(card.shape.length) > 0, "the length of an image");
  require(card.task != "captions" || captions_side(card.shape.length) > 0, "the length of an image and a caption");
  require(card.shape.vocabulary == vocabulary, "as many tokens as the task or its words have");
  const auto outputs = card.shape.next_token ? vocabulary : static_cast<int64_t>(card.labels.size());
  require(card.shape.outputs == outputs, "one output for each label, or for each token of a language model");
  const bool has_tree = card.tree != "none";
  const TreeMaker trees(card.tree, card.config.branching);
  require(card.shape.tables == (has_tree ? trees.position_tables() : ModelShape().tables) &&
              card.shape.places == (has_tree ? trees.position_places() : ModelShape().places),
          "as many sibling positions as the kind of tree has");
  require(card.pieces.empty() ? card.shape.frozen == 0 : card.shape.frozen > 0 && !card.words.empty(),
          "frozen embeddings where tokens are word pieces");
  if (!card.pieces.empty()) {
    try {
      text_encoder(card.words, card.pieces);
    } catch (const Error& error) {
      throw output_error("{}: the model header is damaged: {}", where, error.what());
    }
    return;
  }
  for (const std::string& word : card.words)
    require(split_words(word) == std::vector<std::string>{word}, "words that a text can have");
}

}  // namespace

// A table of positions ends with the rows of training.
int64_t ModelCard::longest() const {
  return config.positions == "none" || config.positions == "rotary" ? 0 : shape.length;
}

Json ModelCard::to_json() const {
  ModelCard copy = *this;
  copy.config = resolved(copy.config);
  OptionTable config_table, shape_table;
  declare(config_table, copy.config);
  declare(shape_table, copy.shape);
  Json json = {{"format", 1},
               {"task", task},
               {"tree", tree},
               {"labels", labels},
               {"config", config_table.record()},
               {"shape", shape_table.record()}};
  if (!words.empty()) json["words"] = words;
  if (!pieces.empty()) json["pieces"] = pieces;
  if (!label_column.empty()) json[kColumnsKey] = {{"label", label_column}, {"text", text_column}};
  return json;
}

ModelCard ModelCard::from_json(const Json& json, const std::string& where) {
  ModelCard card;
  if (!json.contains("format") || json["format"] != 1) {
    throw output_error("{}: expected format 1, got format {}; the file was written by another version of strata", where,
                       json.contains("format") ? shown(json["format"].dump()) : "none");
  }
  OptionTable config_table, shape_table;
  declare(config_table, card.config);
  declare(shape_table, card.shape);
  try {
    config_table.restore(json.at("config"), where);
    card.config = resolved(card.config);
    shape_table.restore(json.at("shape"), where);
    card.task = json.at("task");
    card.tree = json.at("tree");
    card.labels = json.at("labels").get<std::vector<std::string>>();
    if (json.contains(kColumnsKey)) {
      card.label_column = json[kColumnsKey].at("label");
      card.text_column = json[kColumnsKey].at("text");
    }
    if (json.contains("words")) card.words = json.at("words").get<std::vector<std::string>>();
    if (json.contains("pieces")) card.pieces = json.at("pieces");
  } catch (const nlohmann::json::exception& error) {
    throw output_error("{}: the model header is damaged ({})", where, shown(error.what(), 200));
  }
  check(card, where);
  return card;
}

}  // namespace strata
