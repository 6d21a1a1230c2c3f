#include "train/setup.h"

#include "data/task.h"
#include "data/trees.h"
#ifdef STRATA_HUB
#include "hub/pretrained.h"
#endif
#include "model/out_of_memory.h"
#include "torch/run_on_device.h"
#include "train/evaluate.h"
#include "util/error.h"

namespace strata {
namespace {

#ifdef STRATA_HUB

PretrainedConfig encoder_config(const std::string& folder) {
  PretrainedConfig config = read_pretrained_config(folder);
  if (config.is_causal())
    throw data_error("{}: expected an encoder of the BERT family (BERT, MiniLM), got a language model", folder);
  return config;
}

// Channels of the word embeddings in a Hugging Face folder.
int64_t frozen_channels(const std::string& folder) { return encoder_config(folder).hidden; }

// Those of the words of a card: (words, channels).
torch::Tensor frozen_words(const std::string& folder, const ModelCard& card) {
  const PretrainedConfig config = encoder_config(folder);
  const auto words = static_cast<int64_t>(card.words.size());
  if (words > config.vocabulary)
    throw data_error("{}: the tokenizer has {} tokens and the model {}; expected files of one model", folder, words,
                     config.vocabulary);
  return Pretrained::load_words(folder, config).narrow(0, 0, words);
}

#else  // without ICU there are no word pieces, and load_task() has said so

int64_t frozen_channels(const std::string&) { return 0; }
torch::Tensor frozen_words(const std::string&, const ModelCard&) { return {}; }

#endif

}  // namespace

ModelCard make_card(const RunConfig& config, const TaskData& data) {
  ModelCard card;
  card.config = resolved(config.model);
  card.task = data.task;
  card.labels = data.labels;
  card.words = data.words;
  card.pieces = data.pieces;
  if (data.task == "table") {
    card.label_column = config.data.label_column;
    card.text_column = config.data.text_column;
  }
  card.tree = config.model.tree == "task" ? find_task(data.task).tree : config.model.tree;
  const bool texts = data.task != "listops" && data.task != "captions";
  if ((card.tree == "text" && !texts) || (card.tree == "brackets" && data.task != "listops") ||
      (card.tree == "quadtree" && data.task != "cifar10") || (card.tree == "captioned" && data.task != "captions")) {
    throw usage_error("--tree: the rows of {} have no {} structure; choose task, balanced or star", data.task,
                      card.tree);
  }
  card.shape.vocabulary = data.vocabulary;
  card.shape.next_token = data.goal == Goal::kNextToken;
  card.shape.outputs = card.shape.next_token ? data.vocabulary : static_cast<int64_t>(data.labels.size());
  card.shape.length = data.length;
  if (!data.pieces.empty()) card.shape.frozen = frozen_channels(config.data.embeddings);
  if (card.tree != "none") {
    const TreeMaker trees(card.tree, config.model.branching, card.words);
    card.shape.tables = trees.position_tables();
    card.shape.places = trees.position_places();
  }
  return card;
}

SequenceModel make_model(const ModelCard& card, const std::string& embeddings) {
  try {
    SequenceModel model(card.config, card.shape);
    if (card.shape.frozen > 0) model->freeze_embeddings(frozen_words(embeddings, card));
    return model;
  } catch (const c10::Error& error) {
    throw_if_out_of_memory(error);
    throw usage_error("model: {}", error.what_without_backtrace());
  }
}

torch::Device device_of(const std::string& name) {
  if (name == "cpu") return {torch::kCPU};
  if (!built_with_cuda())
    throw usage_error("--device: this build has no CUDA kernels; build with -DSTRATA_CUDA=ON, or use --device cpu");
  if (!torch::cuda::is_available()) throw usage_error("--device: no CUDA device found; use --device cpu");
  return {torch::kCUDA};
}

double score_ratio(const ModelCard& card, const TaskData& data) {
  if (!wants_trees(card.config, card.shape))
    return find_attention(card.config.attention).score_ratio(card.config, card.shape);
  constexpr int64_t kSample = 256;
  const std::shared_ptr<TreeMaker> trees = tree_maker(card);
  const int levels = card.config.attention == "strata" ? static_cast<int>(card.config.levels) : 1;
  double cost = 0, flat = 0;
  for (int64_t row = 0; row < std::min(kSample, data.test.size()); ++row) {
    const auto tokens = static_cast<double>(data.test.row(row).size());
    cost += static_cast<double>(trees->tree(data.test.row(row))->cost(levels));
    flat += tokens * tokens;
  }
  return cost / flat;
}

}  // namespace strata
