// Writes text with a trained model.
#ifndef PLO_PADDLE_LITE_OFFLOAD_SAMPLER_H_
#define PLO_PADDLE_LITE_OFFLOAD_SAMPLER_H_

#include <cstdint>
#include <string>

#include "paddle_lite_offload/engine.h"

namespace plo {

struct SampleOptions {
  int64_t count = 200;       // bytes
  double temperature = 0.8;  // 0: always the likeliest byte
  std::string prompt;        // empty: a line break
  int64_t seed = 0;
};

// Bytes sampled one by one from "logits" of the engine's first eval program,
// which reads "tokens" int32 [1, S]; the last S bytes are its context. Returns
// the prompt and what follows it. Throws InvalidArgument for logits that are
// not finite.
std::string SampleBytes(Engine& engine, const SampleOptions& options);

// The index that `point` in [0, 1) falls on when index i takes a share of
// exp(logits[i] / temperature).
int PickToken(const double* logits, int count, double temperature,
              double point);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_SAMPLER_H_
