#include "generate/generator.h"

#include <chrono>

#include "generate/language_model.h"
#include "generate/text_out.h"
#include "util/error.h"
#include "util/interrupt.h"

namespace strata {
namespace {

using torch::Tensor;

std::vector<double> to_vector(const Tensor& logits) {
  const Tensor numbers = logits.to(torch::kCPU, torch::kDouble).contiguous();
  return {numbers.data_ptr<double>(), numbers.data_ptr<double>() + numbers.numel()};
}

}  // namespace

Generator::Generator(const std::string& model, const GenerateOptions& options) : options_(options) {
  const bool hub = fs::exists(fs::path(model) / "config.json");
  model_ = hub ? open_hub(model, options) : open_trained(model, options);
}
Generator::~Generator() = default;

Generated Generator::operator()(const std::string& prompt, const std::function<void(std::string_view)>& write) {
  using Seconds = std::chrono::duration<double>;
  auto start = std::chrono::steady_clock::now();
  std::vector<int64_t> context = model_->encode(prompt);
  Generated result;
  result.prompt_tokens = static_cast<int64_t>(context.size());
  // A context that is too long loses its beginning: the last half of what fits is read again.
  const int64_t longest = model_->longest();
  auto read_again = [&] {
    if (static_cast<int64_t>(context.size()) > longest / 2 && longest > 0)
      context.erase(context.begin(), context.end() - std::max<int64_t>(1, longest / 2));
    model_->forget();
    return model_->read(context);
  };
  const bool fits = longest == 0 || static_cast<int64_t>(context.size()) <= longest;
  model_->forget();
  Tensor logits = fits ? model_->read(context) : read_again();
  result.prompt_seconds = Seconds(std::chrono::steady_clock::now() - start).count();
  start = std::chrono::steady_clock::now();
  TextOut out(options_.stops, write);
  Random random(static_cast<uint64_t>(options_.seed));
  for (; result.tokens < options_.tokens; ++result.tokens) {
    if (interrupted()) {
      result.ended = "interrupt";
      break;
    }
    if (result.tokens > 0) {
      const bool room = longest == 0 || static_cast<int64_t>(context.size()) <= longest;
      logits = room ? model_->read({context.back()}) : read_again();
    }
    const int64_t token = sample_token(to_vector(logits), options_.sample, random);
    if (token < 0) throw data_error("the model's outputs are not finite; its weights may be damaged");
    if (model_->is_end(token)) {
      result.ended = "end of text";
      break;
    }
    context.push_back(token);
    result.ids.push_back(token);
    if (!out.add(model_->decode(token))) {
      result.ended = "stop";
      break;
    }
  }
  out.finish();
  result.text = out.text();
  result.seconds = Seconds(std::chrono::steady_clock::now() - start).count();
  const CacheSize cache = model_->cache();
  result.cache_bytes = cache.bytes;
  result.cache_nodes = cache.nodes;
  result.node_bytes = cache.node_bytes;
  result.every_token_bytes = cache.every_token_bytes;
  return result;
}

}  // namespace strata
