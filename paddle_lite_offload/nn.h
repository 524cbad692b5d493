// Layers: functions that make params in a region of their own and return the
// layer's output.
//
// Weights of linear layers are [in, out]. Biases and the params of norms take
// no weight decay.
#ifndef PLO_PADDLE_LITE_OFFLOAD_NN_H_
#define PLO_PADDLE_LITE_OFFLOAD_NN_H_

#include <cstdint>
#include <string_view>

#include "paddle_lite_offload/graph_builder.h"

namespace plo::nn {

// The attributes of a bias or of a norm's param.
ParamAttrs NoDecay();

struct LinearOptions {
  bool bias = true;
  double init_std = 0.02;
};
// x [.., in] gives [.., out]. Params NAME/weight and NAME/bias.
Value Linear(GraphBuilder& g, std::string_view name, Value x, int64_t out,
             const LinearOptions& options = {}, Site site = PLO_HERE);

// Params NAME/weight and NAME/bias.
Value LayerNorm(GraphBuilder& g, std::string_view name, Value x,
                double eps = 1e-5, Site site = PLO_HERE);

// A table to embed with and, transposed, to project on: [rows, width]. Param
// NAME/weight.
Value EmbeddingTable(GraphBuilder& g, std::string_view name, int64_t rows,
                     int64_t width, double init_std = 0.02,
                     Site site = PLO_HERE);

struct AttentionOptions {
  int64_t heads = 1;
  int64_t kv_heads = 0;  // 0: heads
  bool causal = true;
  bool bias = true;
  double init_std = 0.02;
  double out_init_std = 0.02;  // of the projection back to the residual
};
// Self-attention of x [B, S, H]: regions qkv, core_attn and proj. Throws
// InvalidArgument unless heads divides H and kv_heads divides heads.
Value SelfAttention(GraphBuilder& g, Value x, const AttentionOptions& options,
                    Site site = PLO_HERE);

struct MlpOptions {
  int64_t hidden = 0;
  bool bias = true;
  double init_std = 0.02;
  double out_init_std = 0.02;
};
// Linear, GELU, linear back to the width of x: regions fc1 and fc2.
Value Mlp(GraphBuilder& g, Value x, const MlpOptions& options,
          Site site = PLO_HERE);

}  // namespace plo::nn

#endif  // PLO_PADDLE_LITE_OFFLOAD_NN_H_
