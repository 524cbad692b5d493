#include "paddle_lite_offload/nn.h"

namespace plo::nn {

ParamAttrs NoDecay() {
  ParamAttrs attrs;
  attrs.weight_decay = false;
  return attrs;
}

Value Linear(GraphBuilder& g, std::string_view name, Value x, int64_t out,
             const LinearOptions& options, Site site) {
  const auto scope = g.Region(name);
  const int64_t in = g.shape(x).dim(-1);
  const Value weight =
      g.Param("weight", {in, out}, Init::Normal(options.init_std), {}, site);
  Value bias;
  if (options.bias) {
    bias = g.Param("bias", {out}, Init::Constant(0), NoDecay(), site);
  }
  return g.Matmul(x, weight, bias, false, false, site);
}

Value LayerNorm(GraphBuilder& g, std::string_view name, Value x, double eps,
                Site site) {
  const auto scope = g.Region(name);
  const int64_t width = g.shape(x).dim(-1);
  const Value weight =
      g.Param("weight", {width}, Init::Constant(1), NoDecay(), site);
  const Value bias =
      g.Param("bias", {width}, Init::Constant(0), NoDecay(), site);
  return g.LayerNorm(x, weight, bias, eps, site);
}

Value EmbeddingTable(GraphBuilder& g, std::string_view name, int64_t rows,
                     int64_t width, double init_std, Site site) {
  const auto scope = g.Region(name);
  return g.Param("weight", {rows, width}, Init::Normal(init_std), {}, site);
}

Value SelfAttention(GraphBuilder& g, Value x, const AttentionOptions& options,
                    Site site) {
  const int64_t width = g.shape(x).dim(-1);
  const int64_t heads = options.heads;
  const int64_t kv_heads = options.kv_heads > 0 ? options.kv_heads : heads;
  PLO_ENFORCE(heads > 0 && width % heads == 0, kInvalidArgument, "heads ",
              heads, " does not divide hidden ", width);
  PLO_ENFORCE(heads % kv_heads == 0, kInvalidArgument, "kv_heads ", kv_heads,
              " does not divide heads ", heads);
  const int64_t head_width = width / heads;
  const Value qkv =
      Linear(g, "qkv", x, (heads + 2 * kv_heads) * head_width,
             {.bias = options.bias, .init_std = options.init_std}, site);
  Value mixed;
  {
    const auto scope = g.Region("core_attn");
    mixed = g.AttentionQkv(qkv, heads, kv_heads, options.causal, 0, site);
  }
  return Linear(g, "proj", mixed, width,
                {.bias = options.bias, .init_std = options.out_init_std}, site);
}

Value Mlp(GraphBuilder& g, Value x, const MlpOptions& options, Site site) {
  const int64_t width = g.shape(x).dim(-1);
  const Value wide =
      Linear(g, "fc1", x, options.hidden,
             {.bias = options.bias, .init_std = options.init_std}, site);
  const Value active = g.Gelu(wide, "tanh", site);
  return Linear(g, "fc2", active, width,
                {.bias = options.bias, .init_std = options.out_init_std}, site);
}

}  // namespace plo::nn
