// The C++ graph API: calls that append ops to a Program.
//
//   plo::GraphBuilder g("tiny", /*seed=*/1);
//   plo::Value x = g.Feed("x", plo::DType::kFp32, {8, 4});
//   plo::Value w = g.Param("w", {4, 2}, plo::Init::Normal(0.02));
//   plo::Value y = g.Matmul(x, w);
//   ...
//   plo::Program program = g.Build();
//
// Everything is built in fp32; the apply_amp pass lowers it. Shapes are those
// of one micro-batch on one rank. Wrong operands throw at once, with the place
// in the caller's code. A region is a scope: names of params and temps start
// with its path.
#ifndef PLO_PADDLE_LITE_OFFLOAD_GRAPH_BUILDER_H_
#define PLO_PADDLE_LITE_OFFLOAD_GRAPH_BUILDER_H_

#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/ir/op_registry.h"
#include "framework/ir/program.h"

namespace plo {

// Names a var of the builder that made it. Eight bytes, copied freely; the
// empty one stands for an absent operand.
struct Value {
  int32_t program_id = 0;
  VarId id = kNoId;
  bool empty() const { return id == kNoId; }
  friend bool operator==(const Value&, const Value&) = default;
};

// Where the user's code made a call. As a defaulted parameter it is filled in
// by the compiler; language bindings pass file and line.
class Site {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a defaulted parameter.
  Site(std::source_location where)
      : text_(FileAndLine(where.file_name(), where.line())) {}
  Site(std::string_view file, int line) : text_(FileAndLine(file, line)) {}
  const std::string& text() const { return text_; }  // "gpt.cc:40"

 private:
  static std::string FileAndLine(std::string_view file, int64_t line);
  std::string text_;
};
// Writes `site = PLO_HERE` into a parameter list.
#define PLO_HERE ::std::source_location::current()

// How a param gets its initial value. Random ones depend on the program's
// seed, the param's name and the element only.
struct Init {
  enum class Kind { kConstant, kNormal, kUniform };
  Kind kind = Kind::kConstant;
  double a = 0;  // value, mean or low
  double b = 0;  // standard deviation or high
  static Init Constant(double value) { return {Kind::kConstant, value, 0}; }
  static Init Normal(double std, double mean = 0) {
    return {Kind::kNormal, mean, std};
  }
  static Init Uniform(double low, double high) {
    return {Kind::kUniform, low, high};
  }
};

class GraphBuilder;

// Leaves the region when it goes out of scope.
class [[nodiscard]] RegionScope {
 public:
  RegionScope(GraphBuilder& builder, std::string_view name);
  ~RegionScope();
  RegionScope(const RegionScope&) = delete;
  RegionScope& operator=(const RegionScope&) = delete;

 private:
  GraphBuilder& builder_;
};

// Thread-compatible. Build() ends its life: later calls throw
// FailedPrecondition.
class GraphBuilder {
 public:
  explicit GraphBuilder(std::string name = "main", int64_t seed = 0);
  GraphBuilder(const GraphBuilder&) = delete;
  GraphBuilder& operator=(const GraphBuilder&) = delete;

  // --- Regions ---
  // auto scope = g.Region("layer3"); nested calls join with '/'.
  RegionScope Region(std::string_view name) { return {*this, name}; }
  void PushRegion(std::string_view name);
  void PopRegion();
  std::string region() const;

  // --- Vars ---
  // Feeds keep their name as it is; a region does not enter it.
  Value Feed(std::string_view name, DType dtype, Shape shape,
             Site site = PLO_HERE);
  Value Param(std::string_view name, Shape shape, const Init& init,
              const ParamAttrs& attrs = {}, Site site = PLO_HERE);
  // Renames a var, so that it can be fetched by that name. No region is added.
  Value Name(Value value, std::string_view name, Site site = PLO_HERE);
  // The loss, summed over the valid items of the micro-batch, and their number
  // (CountValid or CountElements).
  void SetLoss(Value loss_sum, Value count, Site site = PLO_HERE);

  const Shape& shape(Value value) const;
  DType dtype(Value value) const;
  const std::string& name(Value value) const;

  // --- Any op ---
  // Appends an op by its schema; returns the outputs in schema order.
  struct Operand {
    std::string slot;
    std::vector<Value> values;  // empty values are left out
  };
  std::vector<Value> AddOp(std::string_view type,
                           const std::vector<Operand>& inputs,
                           AttrMap attrs = {}, Site site = PLO_HERE);

  // --- Linear algebra ---
  // x [.., K] times y [K, N] (or batched), plus bias [N].
  Value Matmul(Value x, Value y, Value bias = {}, bool trans_x = false,
               bool trans_y = false, Site site = PLO_HERE);

  // --- Elementwise; operands broadcast as in numpy ---
  Value Add(Value x, Value y, Site site = PLO_HERE);
  Value Sub(Value x, Value y, Site site = PLO_HERE);
  Value Mul(Value x, Value y, Site site = PLO_HERE);
  Value Div(Value x, Value y, Site site = PLO_HERE);
  Value Scale(Value x, double factor, double bias = 0, Site site = PLO_HERE);
  Value Gelu(Value x, std::string_view approximate = "tanh",
             Site site = PLO_HERE);
  Value Relu(Value x, Site site = PLO_HERE);
  Value Silu(Value x, Site site = PLO_HERE);
  Value Tanh(Value x, Site site = PLO_HERE);
  Value Cast(Value x, DType dtype, Site site = PLO_HERE);
  // Returns x itself for p = 0.
  Value Dropout(Value x, double p, Site site = PLO_HERE);

  // --- Norms, attention, embedding ---
  Value Softmax(Value x, Site site = PLO_HERE);
  // Over the last axis; weight and bias may be empty.
  Value LayerNorm(Value x, Value weight = {}, Value bias = {},
                  double eps = 1e-5, Site site = PLO_HERE);
  // q [B, S, H, D], k and v [B, S, Hkv, D]; scale 0 means 1 / sqrt(D).
  Value Attention(Value q, Value k, Value v, bool causal, double scale = 0,
                  Site site = PLO_HERE);
  // qkv [B, S, (heads + 2 kv_heads) * D] gives [B, S, heads * D].
  Value AttentionQkv(Value qkv, int64_t heads, int64_t kv_heads, bool causal,
                     double scale = 0, Site site = PLO_HERE);
  Value Embedding(Value ids, Value weight, Site site = PLO_HERE);

  // --- Losses: sums over the valid items ---
  Value CrossEntropy(Value logits, Value labels, int64_t ignore_index = -100,
                     Site site = PLO_HERE);
  // Logits x [.., H] times weight [V, H] transposed, never held in full.
  // chunk_tokens 0 lets the op choose.
  Value LinearCrossEntropy(Value x, Value weight, Value labels,
                           int64_t ignore_index = -100,
                           int64_t chunk_tokens = 0, Site site = PLO_HERE);
  Value SumSquaredError(Value x, Value y, Site site = PLO_HERE);
  // Both take a feed: the count of a step is known before its first micro-step.
  Value CountValid(Value labels, int64_t ignore_index = -100,
                   Site site = PLO_HERE);
  Value CountElements(Value feed, Site site = PLO_HERE);

  // --- Shapes ---
  // One dimension may be -1.
  Value Reshape(Value x, std::vector<int64_t> shape, Site site = PLO_HERE);
  Value Transpose(Value x, std::vector<int64_t> perm, Site site = PLO_HERE);
  Value Slice(Value x, int64_t axis, int64_t begin, int64_t end,
              Site site = PLO_HERE);
  Value Concat(const std::vector<Value>& x, int64_t axis, Site site = PLO_HERE);
  std::vector<Value> Split(Value x, int64_t axis, std::vector<int64_t> sizes,
                           Site site = PLO_HERE);
  Value BroadcastTo(Value x, std::vector<int64_t> shape, Site site = PLO_HERE);

  // --- Reductions and constants ---
  Value ReduceSum(Value x, std::vector<int64_t> axes, bool keepdims = false,
                  Site site = PLO_HERE);
  Value ReduceMean(Value x, std::vector<int64_t> axes, bool keepdims = false,
                   Site site = PLO_HERE);
  Value ReduceMax(Value x, std::vector<int64_t> axes, bool keepdims = false,
                  Site site = PLO_HERE);
  Value FillConstant(double value, std::vector<int64_t> shape,
                     Site site = PLO_HERE);

  // Checks the whole program and hands it over.
  Program Build(Site site = PLO_HERE);

 private:
  std::string Scoped(std::string_view name) const;
  const Var& Get(Value value) const;
  // For checks of the builder's own: "built at gpt.cc:40: message".
  template <typename... Args>
  void Require(bool condition, const Site& site, const Args&... args) const {
    PLO_ENFORCE(condition, kInvalidArgument, "built at ", site.text(), ": ",
                args...);
  }
  VarId AddOutput(const OpSchema& schema, const Op& op,
                  const InferContext::Result& result, bool first);
  std::vector<Value> Append(std::string_view type,
                            const std::vector<Operand>& inputs, AttrMap attrs,
                            const Site& site);
  Value Unary(std::string_view type, Value x, AttrMap attrs, const Site& site);
  Value Binary(std::string_view type, Value x, Value y, const Site& site);
  Value Count(std::string_view type, std::string_view slot, Value feed,
              AttrMap attrs, const Site& site);

  int32_t id_;
  bool built_ = false;
  Program program_;
  std::vector<std::string> regions_;
  OpId next_random_id_ = 0;
};

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_GRAPH_BUILDER_H_
