#include "generate/generator.h"
#include "util/common_options.h"

namespace strata {

void declare(OptionTable& table, GenerateOptions& o) {
  table.begin_group("Text");
  table.add("tokens", &o.tokens, {.help = "Largest number of tokens", .min = 1, .max = kMostCount});
  table.add(
      "temperature", &o.sample.temperature,
      {.help = "Below 1: likelier tokens; above 1: less likely ones; 0: always the likeliest", .min = 0, .max = 100});
  table.add("top_k", &o.sample.top_k, {.help = "Only the k likeliest tokens; 0: all", .min = 0, .max = kMostCount});
  table.add("top_p", &o.sample.top_p,
            {.help = "Only the likeliest tokens that together have this probability", .min = 1e-6, .max = 1});
  table.add("seed", &o.seed,
            {.help = "Seed of the sampling; the same seed gives the same text", .min = 0, .max = kMostSeed});
  table.add("stop", &o.stops,
            {.help = "A text that ends the generation and is not printed; may be given several times",
             .type = "TEXT",
             .repeated = true});
  table.begin_group("Injection");
  table.add("layers", &o.layers,
            {.help = "Hugging Face models: layers that attend by streaming HSA: none, late, or numbers from 0: 9,11"});
  table.add("branching", &o.branching, {.help = "Children per family in these layers", .min = 2, .max = 64});
  table.begin_group("Device");
  table.add("device", &o.device, {.help = "Device to compute on", .choices = {"cpu", "cuda"}});
  declare_check_digest(table, o.check_digest);
}

}  // namespace strata
