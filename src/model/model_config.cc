#include "model/model_config.h"

namespace strata {

std::vector<std::string>& attention_names() {
  static std::vector<std::string> names = {"flat", "hkt", "hsa", "strata"};
  return names;
}

ModelConfig resolved(ModelConfig config) {
  if (config.positions == "auto") config.positions = config.is_modern() ? "rotary" : "learned";
  return config;
}

void declare(OptionTable& table, ModelConfig& c) {
  table.begin_group("Model");
  table.add("attention", &c.attention, {.help = "Which attention", .choices = attention_names()});
  table.add("block", &c.block,
            {.help = "classic: LayerNorm, GELU, biases; modern: RMSNorm, SwiGLU, rotary positions, no biases",
             .choices = {"classic", "modern"}});
  table.add("layers", &c.layers, {.help = "Transformer blocks", .min = 1, .max = 1000});
  table.add("model_size", &c.model_size, {.help = "Channels", .min = 1, .max = 1 << 20});
  table.add("heads", &c.heads, {.help = "Attention heads", .min = 1, .max = 1 << 16});
  table.add("key_heads", &c.key_heads,
            {.help = "Heads of keys and values, a divisor of the heads, which share them; 0: as many as heads",
             .min = 0,
             .max = 1 << 16});
  table.add("ffn", &c.ffn,
            {.help = "Width of the feed-forward layers, times the model size; modern: 2/3 of it, for its third matrix",
             .min = 1,
             .max = 1024});
  table.add("positions", &c.positions,
            {.help = "Position embeddings added to the tokens; rotary: queries and keys are rotated instead; auto: "
                     "learned, or rotary in modern blocks",
             .choices = {"auto", "learned", "sinusoidal", "rotary", "none"}});
  table.add("window", &c.window,
            {.help = "Flat attention and HKT: tokens that a token sees on each side of it, before it only in language "
                     "models; 0: all",
             .min = 0,
             .max = 1 << 20});
  table.add("pooling", &c.pooling, {.help = "What the classifier reads", .choices = {"mean", "first"}});
  table.add("dropout", &c.dropout,
            {.help = "Dropout after embedding, attention and feed-forward", .min = 0, .max = 0.99});
  table.begin_group(kLevelOptions);
  table.add("levels", &c.levels, {.help = "Resolutions; 1 is flat attention", .min = 1, .max = 5});
  table.add("taps", &c.taps, {.help = "Taps of each causal filter", .min = 1, .max = 64});
  table.add("filters", &c.filters,
            {.help = "One weight per channel, or full matrices", .choices = {"depthwise", "dense"}});
  table.add("projections", &c.projections,
            {.help = "One pair of query and key projections for all levels, or one per level",
             .choices = {"shared", "per-level"}});
  table.add("level_weights", &c.level_weights,
            {.help = "Weights of the levels: learned per head, or fixed: all the same, or one level alone",
             .choices = {"learned", "uniform", "level-0", "level-1", "level-2", "level-3", "level-4"}});
  table.add("input_filter", &c.input_filter,
            {.help = "A stride-1 causal filter before the projections, also with flat attention"});
  table.add("psd", &c.psd, {.help = "Keys made from queries, so that the symmetrised kernel is PSD"});
  table.begin_group(kTreeOptions);
  table.add(
      "tree", &c.tree,
      {.help = "Tree over the tokens; task: the tree of the task's data; none: neighbours and blocks, Strata only",
       .choices = {"task", "brackets", "text", "quadtree", "captioned", "balanced", "star", "none"}});
  table.add("branching", &c.branching, {.help = "Children of a family at most", .min = 2, .max = 64});
  table.add("near", &c.near,
            {.help = "Strata without a tree: families that a token sees in full, its own included",
             .min = 1,
             .max = 1 << 20});
  table.add("sibling_positions", &c.sibling_positions,
            {.help = "Position terms between siblings", .choices = {"bias", "learned", "sinusoidal", "none"}});
  table.add("normalize", &c.normalize, {.help = "LayerNorm on queries and keys, as in the paper"});
}

void declare(OptionTable& table, ModelShape& s) {
  table.add("vocabulary", &s.vocabulary, {.help = "Tokens", .min = 1, .max = kMostCount});
  table.add("outputs", &s.outputs, {.help = "Classes, or the vocabulary", .min = 1, .max = kMostCount});
  table.add("length", &s.length, {.help = "Tokens per row at most", .min = 1, .max = 1 << 20});
  table.add("next_token", &s.next_token, {.help = "A causal language model"});
  table.add("tables", &s.tables, {.help = "Sibling position tables", .min = 1, .max = kMostCount});
  table.add("places", &s.places, {.help = "Places in each", .min = 1, .max = kMostCount});
  table.add("frozen", &s.frozen, {.help = "Channels of frozen embeddings; 0: learned ones", .min = 0, .max = 1 << 20});
}

}  // namespace strata
