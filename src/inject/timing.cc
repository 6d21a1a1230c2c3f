#include "inject/timing.h"

#include <algorithm>
#include <chrono>
#include <fstream>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "util/error.h"
#include "util/statistics.h"

namespace strata {
namespace {

using torch::Tensor;
using Work = std::function<void()>;

double milliseconds(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// In turns, so that a machine that slows down slows both.
Json race(const Work& flat, const Work& hsa, double seconds) {
  flat();
  hsa();
  std::vector<double> flat_times, hsa_times;
  double spent = 0;
  while (flat_times.size() < 3 || (spent < 1e3 * seconds && flat_times.size() < 200)) {
    flat_times.push_back(milliseconds(flat));
    hsa_times.push_back(milliseconds(hsa));
    spent += flat_times.back() + hsa_times.back();
  }
  const double a = median(flat_times), b = median(hsa_times);
  return {{"flat_ms", a}, {"hsa_ms", b}, {"ratio", a / b}};
}

// The largest resident size since the last reset, in bytes; 0 if the system does not provide it.
int64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

int64_t memory_of(const Work& work) {
#ifdef __GLIBC__
  malloc_trim(0);  // otherwise memory of earlier passes is reused and not counted
#endif
  std::ofstream("/proc/self/clear_refs") << 5;  // resets the peak to the current size
  const int64_t before = peak_memory();
  work();
  return peak_memory() - before;
}

// A text of sentences of twenty words, a token each.
HostText any_text(int64_t tokens) {
  HostText text;
  for (int64_t t = 0; t < tokens; ++t) {
    text.encoding.ids.push_back(static_cast<int32_t>(t % 97 + 1));
    text.encoding.places.push_back({6 * t, 6 * t + 5});
    text.text += t % 20 == 19 ? "word. " : "words ";
  }
  text.special = {0, tokens - 1};
  return text;
}

// If the host cannot read that text (expressions in brackets), a balanced tree is timed.
TreeRecipe timed_recipe(const Host& host, const TreeRecipe& recipe) {
  try {
    recipe.make(host, any_text(16));
    return recipe;
  } catch (const Error&) {
    return {"balanced", recipe.branching};
  }
}

// Every injected layer on this one tree.
InjectionSelection on_tree(std::vector<int64_t> layers, const TreeRecipe& recipe, bool exact_special) {
  InjectionSelection selection{{}, exact_special};
  for (const int64_t layer : layers) selection.layers.push_back({layer, {recipe}});
  return selection;
}

}  // namespace

ForwardFlops forward_flops(const PretrainedConfig& config, int64_t tokens, const std::vector<AttentionCost>& costs) {
  ForwardFlops flops;
  const auto heads = static_cast<double>(config.heads * config.head_size), hidden = static_cast<double>(config.hidden),
             keys = static_cast<double>(config.key_heads * config.head_size);
  for (const AttentionCost& cost : costs) flops.attention += 2 * heads * cost.spent;
  const double ffn = (config.is_modern() ? 3.0 : 2.0) * hidden * static_cast<double>(config.inner);  // with a gate
  const double weights = static_cast<double>(config.layers) * (2 * hidden * heads + 2 * hidden * keys + ffn);
  flops.projections = 2 * static_cast<double>(tokens) * weights;
  return flops;
}

Json time_by_length(Host& host, const InjectionSelection& selection, const TreeRecipe& wanted,
                    const std::vector<int64_t>& lengths, double seconds_each) {
  torch::NoGradGuard no_grad;
  const TreeRecipe recipe = timed_recipe(host, wanted);
  std::vector<int64_t> selected, all;
  for (const LayerSelection& layer : selection.layers) selected.push_back(layer.layer);
  for (int64_t layer = 0; layer < host.layers(); ++layer) all.push_back(layer);
  const int64_t heads = host.heads(), key_heads = host.key_heads(), channels = host.head_size();
  const AttentionFunction softmax = softmax_attention(host.is_causal());
  Json rows = Json::array();
  for (const int64_t tokens : lengths) {
    const std::vector<HostText> text = {any_text(tokens)};
    const AttentionFunction every = on_tree(all, recipe, selection.exact_special).attention(host, text);
    const Tensor q = torch::randn({1, heads, tokens, channels}), k = torch::randn({1, key_heads, tokens, channels}),
                 v = torch::randn_like(k);
    const Tensor real = torch::tensor({tokens});
    Json row = {{"tokens", tokens}, {"tree", recipe.name()}};
    row["operator"] = race([&] { softmax(0, q, k, v, real); }, [&] { every(0, q, k, v, real); }, seconds_each);
    if (tokens <= host.positions()) {
      const Tensor ids = torch::randint(1, 10, {1, tokens}, torch::kLong);
      const AttentionFunction injected = on_tree(selected, recipe, selection.exact_special).attention(host, text);
      auto model = [&](const AttentionFunction& attention) { return [&] { host.run(ids, real, attention); }; };
      row["layer"] = race(model(softmax), model(every), seconds_each);
      for (const char* which : {"flat_ms", "hsa_ms"})
        row["layer"][which] = row["layer"][which].get<double>() / static_cast<double>(host.layers());
      row["model"] = race(model(softmax), model(injected), seconds_each);
      row["model"]["flat_bytes"] = memory_of(model(softmax));
      row["model"]["hsa_bytes"] = memory_of(model(injected));
    }
    rows.push_back(row);
  }
  return rows;
}

}  // namespace strata
