#include "paddle_lite_offload/models.h"

#include <cmath>
#include <string>

#include "framework/ir/checked_math.h"
#include "paddle_lite_offload/graph_builder.h"
#include "paddle_lite_offload/nn.h"

namespace plo {
namespace {

constexpr double kInitStd = 0.02;

void RequirePositive(int64_t value, const char* field) {
  PLO_ENFORCE(value > 0, kInvalidArgument, field, " must be positive, got ",
              value);
}

const char* ProgramName(ModelMode mode) {
  switch (mode) {
    case ModelMode::kTrain:
      return "main";
    case ModelMode::kEval:
      return "eval";
    case ModelMode::kGenerate:
      return "generate";
  }
  PLO_THROW(kInternal, "bad model mode ", static_cast<int>(mode));
}

void CheckGpt(const GptConfig& c) {
  RequirePositive(c.layers, "layers");
  RequirePositive(c.hidden, "hidden");
  RequirePositive(c.heads, "heads");
  RequirePositive(c.seq_len, "seq_len");
  RequirePositive(c.vocab_size, "vocab_size");
  RequirePositive(c.micro_batch, "micro_batch");
  PLO_ENFORCE(c.vocab_size <= INT32_MAX, kInvalidArgument,
              "vocab_size must be at most ", INT32_MAX,
              ", since token ids are int32, got ", c.vocab_size);
  PLO_ENFORCE(c.kv_heads >= 0, kInvalidArgument,
              "kv_heads must be positive, got ", c.kv_heads);
  PLO_ENFORCE(c.ffn_hidden >= 0, kInvalidArgument,
              "ffn_hidden must be positive, got ", c.ffn_hidden);
  PLO_ENFORCE(c.hidden % c.heads == 0, kInvalidArgument, "heads ", c.heads,
              " does not divide hidden ", c.hidden);
  PLO_ENFORCE(c.dropout >= 0 && c.dropout < 1, kInvalidArgument,
              "dropout must be in [0, 1), got ", c.dropout);
}

// One pre-norm block: attention, then the feed-forward part, each added to the
// residual stream.
Value Block(GraphBuilder& g, Value x, const GptConfig& c, double dropout) {
  // GPT-2: the stream's variance should not grow with depth.
  const double out_std = kInitStd / std::sqrt(2.0 * c.layers);
  const Value normed1 = nn::LayerNorm(g, "ln1", x);
  const Value attended = nn::SelfAttention(g, normed1,
                                           {.heads = c.heads,
                                            .kv_heads = c.kv_heads,
                                            .causal = true,
                                            .bias = c.bias,
                                            .init_std = kInitStd,
                                            .out_init_std = out_std});
  const Value middle = g.Add(x, g.Dropout(attended, dropout));
  const Value normed2 = nn::LayerNorm(g, "ln2", middle);
  const Value fed =
      nn::Mlp(g, normed2,
              {.hidden = c.ffn_hidden > 0 ? c.ffn_hidden : 4 * c.hidden,
               .bias = c.bias,
               .init_std = kInitStd,
               .out_init_std = out_std});
  return g.Add(middle, g.Dropout(fed, dropout));
}

}  // namespace

Program BuildGpt(const GptConfig& c, ModelMode mode) {
  CheckGpt(c);
  const double dropout = mode == ModelMode::kTrain ? c.dropout : 0;
  GraphBuilder g(ProgramName(mode), c.seed);
  const Shape batch{c.micro_batch, c.seq_len};
  const Value tokens = g.Feed("tokens", DType::kInt32, batch);
  Value labels;
  if (mode != ModelMode::kGenerate) {
    labels = g.Feed("labels", DType::kInt32, batch);
  }

  Value token_table, x;
  {
    const auto scope = g.Region("embedding");
    token_table = nn::EmbeddingTable(g, "token", c.vocab_size, c.hidden);
    const Value positions =
        nn::EmbeddingTable(g, "position", c.seq_len, c.hidden);
    x = g.Dropout(g.Add(g.Embedding(tokens, token_table), positions), dropout);
  }
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const auto scope = g.Region(StrCat("layer", layer));
    x = Block(g, x, c, dropout);
  }
  {
    const auto scope = g.Region("head");
    x = nn::LayerNorm(g, "ln", x);
    const Value table =
        c.tied_head ? token_table
                    : nn::EmbeddingTable(g, "output", c.vocab_size, c.hidden);
    if (mode == ModelMode::kGenerate) {
      g.Name(g.Matmul(x, table, {}, false, true), "logits");
    } else {
      const Value loss = g.LinearCrossEntropy(x, table, labels, c.ignore_index,
                                              c.chunk_tokens);
      g.SetLoss(loss, g.CountValid(labels, c.ignore_index));
    }
  }
  return g.Build();
}

Program BuildMlp(const MlpConfig& c, ModelMode mode) {
  PLO_ENFORCE(mode != ModelMode::kGenerate, kInvalidArgument,
              "an mlp has nothing to generate");
  PLO_ENFORCE(c.layers >= 0, kInvalidArgument,
              "layers must not be negative, got ", c.layers);
  RequirePositive(c.hidden, "hidden");
  RequirePositive(c.inputs, "inputs");
  RequirePositive(c.outputs, "outputs");
  RequirePositive(c.micro_batch, "micro_batch");
  GraphBuilder g(ProgramName(mode), c.seed);
  Value x = g.Feed("x", DType::kFp32, {c.micro_batch, c.inputs});
  const Value y = g.Feed("y", DType::kFp32, {c.micro_batch, c.outputs});
  const auto init_std = [&g](Value input) {
    return 1.0 / std::sqrt(static_cast<double>(g.shape(input).dim(-1)));
  };
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const auto scope = g.Region(StrCat("layer", layer));
    x = g.Gelu(nn::Linear(g, "fc", x, c.hidden, {.init_std = init_std(x)}));
    if (mode == ModelMode::kTrain) x = g.Dropout(x, c.dropout);
  }
  {
    const auto scope = g.Region("head");
    x = nn::Linear(g, "fc", x, c.outputs, {.init_std = init_std(x)});
    g.SetLoss(g.SumSquaredError(x, y), g.CountElements(y));
  }
  return g.Build();
}

int64_t ParameterCount(const Program& program) {
  int64_t count = 0;
  for (VarId id : program.Params()) {
    count = CheckedAdd(count, program.var(id).shape.numel(), "the params");
  }
  return count;
}

}  // namespace plo
