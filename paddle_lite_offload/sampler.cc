#include "paddle_lite_offload/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace plo {

int PickToken(const double* logits, int count, double temperature,
              double point) {
  const double* best = std::max_element(logits, logits + count);
  PLO_ENFORCE(std::isfinite(*best), kInvalidArgument,
              "the model's logits are not finite");
  if (temperature == 0) return static_cast<int>(best - logits);
  double total = 0;
  std::vector<double> weights(count);
  for (int i = 0; i < count; ++i) {
    weights[i] = std::exp((logits[i] - *best) / temperature);
    total += weights[i];
  }
  double left = point * total;
  for (int i = 0; i < count; ++i) {
    left -= weights[i];
    if (left < 0) return i;
  }
  return static_cast<int>(best - logits);  // rounding at the very end
}

std::string SampleBytes(Engine& engine, const SampleOptions& options) {
  const Program& program = engine.prepared().eval_programs.at(0);
  const Shape& context = program.var(program.GetVar("tokens")).shape;
  const int64_t window = context[1];
  const int vocab =
      static_cast<int>(program.var(program.GetVar("logits")).shape.dim(-1));
  std::mt19937_64 random(static_cast<uint64_t>(options.seed));
  std::string text = options.prompt.empty() ? "\n" : options.prompt;
  for (int64_t i = 0; i < options.count; ++i) {
    const int64_t used = std::min<int64_t>(window, text.size());
    std::vector<int32_t> tokens(window, 0);
    for (int64_t t = 0; t < used; ++t) {
      tokens[t] = static_cast<unsigned char>(text[text.size() - used + t]);
    }
    Feeds feeds;
    feeds["tokens"] = HostTensor::Of(DType::kInt32, context, tokens);
    const std::vector<double> logits =
        engine.executor().RunEval(0, feeds)[0].ToDoubles();
    const double point = static_cast<double>(random() >> 11) * 0x1p-53;
    // Ids above 255 are no bytes.
    text.push_back(static_cast<char>(
        PickToken(logits.data() + (used - 1) * vocab, std::min(vocab, 256),
                  options.temperature, point)));
  }
  return text;
}

}  // namespace plo
