// The models that `plo` trains, as programs before any pass.
#ifndef PLO_PADDLE_LITE_OFFLOAD_MODELS_H_
#define PLO_PADDLE_LITE_OFFLOAD_MODELS_H_

#include <cstdint>

#include "framework/ir/program.h"

namespace plo {

// What a model function builds.
enum class ModelMode {
  kTrain,     // loss and its count
  kEval,      // the same loss without dropout
  kGenerate,  // no loss: the var "logits" [micro_batch, seq_len, vocab_size]
};

// Decoder-only transformer: learned positions, pre-norm blocks, tanh GELU.
// Feeds: "tokens" and, but for kGenerate, "labels", int32 [micro_batch,
// seq_len]. Top-level regions: embedding, layer0, layer1, ..., head.
struct GptConfig {
  int64_t layers = 4;
  int64_t hidden = 128;
  int64_t heads = 4;
  int64_t kv_heads = 0;    // 0: heads
  int64_t ffn_hidden = 0;  // 0: 4 * hidden
  int64_t seq_len = 128;
  int64_t vocab_size = 256;
  int64_t micro_batch = 8;
  bool tied_head = true;  // the head projects on the token embedding
  bool bias = true;
  double dropout = 0;
  int64_t ignore_index = -100;
  int64_t chunk_tokens = 0;  // of the fused head and loss; 0: the op chooses
  int64_t seed = 0;
};
// Throws InvalidArgument naming the field that does not fit.
Program BuildGpt(const GptConfig& config, ModelMode mode = ModelMode::kTrain);
// Elements of all params.
int64_t ParameterCount(const Program& program);

// Multi-layer perceptron for regression: `layers` hidden layers with GELU, then
// a linear one; squared error. Feeds: "x" fp32 [micro_batch, inputs] and "y"
// fp32 [micro_batch, outputs]. Top-level regions: layer0, layer1, ..., head.
// kGenerate is InvalidArgument.
struct MlpConfig {
  int64_t layers = 2;
  int64_t hidden = 64;
  int64_t inputs = 16;
  int64_t outputs = 4;
  int64_t micro_batch = 8;
  double dropout = 0;
  int64_t seed = 0;
};
Program BuildMlp(const MlpConfig& config, ModelMode mode = ModelMode::kTrain);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_MODELS_H_
