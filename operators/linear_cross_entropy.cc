// linear_cross_entropy(x, weight, labels) -> loss_sum, lse {ignore_index,
// chunk_tokens}: cross_entropy(matmul(x, weight, trans_y)) without logits in
// memory: x [.., H], weight [V, H], labels int32 [..], lse fp32 [..].
// linear_cross_entropy_grad(x, weight, labels, lse, dloss, acc?) -> dx?,
// dweight?
// {.., accumulate}: acc is the same var as dweight.
//
// Logits exist as one block of tokens x classes at a time, rounded to the dtype
// where the unfused form would store them; so do their grads. Sums over blocks
// are fp32 and rounded once: in the outputs for fp32, else in the workspace.
// Block sizes follow from the shapes and chunk_tokens (0 picks one).
#include <algorithm>
#include <utility>
#include <vector>

#include "operators/kernel_util.h"
#include "operators/labels.h"
#include "operators/linear_cross_entropy_plan.h"
#include "operators/onednn_utils.h"
#include "operators/running_lse.h"
#include "operators/schema_util.h"
#include "operators/vector_ops.h"

namespace plo {
namespace {

constexpr int64_t kOperandFloats = int64_t{1} << 20;  // of a converted block
constexpr int64_t kMaxBlock = 1024;
// dx of this many floats is summed while dweight is; beyond, logits are
// computed twice.
constexpr int64_t kMaxGradFloats = int64_t{8} << 20;

struct Blocks {
  DType dtype;
  int64_t tokens, classes, hidden;
  int64_t token_block, class_block;
  int64_t dx_rows;  // tokens whose dx is summed at a time
  // Of the rows of a block of logits: not a power of two, which reading down
  // the columns for dweight would not like.
  int64_t logits_stride;

  Blocks(DType type, const Shape& x, const Shape& weight, const AttrMap& attrs)
      : dtype(type),
        tokens(RowCount(x)),
        classes(weight[0]),
        hidden(weight[1]) {
    const int64_t rows = kOperandFloats / hidden;
    const int64_t chunk = attrs.GetInt("chunk_tokens");
    token_block = std::min(
        tokens,
        chunk > 0 ? chunk : std::clamp(rows / 16 * 16, int64_t{64}, kMaxBlock));
    // Cuts at multiples of kLseChunk keep lse the same as cross_entropy's.
    class_block = std::min(classes, std::clamp(rows / kLseChunk * kLseChunk,
                                               kLseChunk, kMaxBlock));
    logits_stride = class_block + 16;
    dx_rows = std::min(tokens, kMaxGradFloats / hidden);
    if (dx_rows < tokens) {
      dx_rows = std::max(dx_rows / token_block, int64_t{1}) * token_block;
    }
  }
  bool narrow() const { return Is16Bit(dtype); }
  bool empty() const { return tokens == 0; }
};

// The workspace, in floats; converted operands and sums are for 16 bits only.
struct Scratch {
  int64_t total = 0;
  float *x = nullptr, *weight = nullptr;
  float *max = nullptr, *sum = nullptr, *label_logit = nullptr;  // forward
  float *dx = nullptr, *dweight = nullptr;                       // backward
  float* logits = nullptr;  // last: the first block fills it

  Scratch(const Blocks& b, bool forward, bool want_dx, bool want_dweight,
          float* base) {
    const auto take = [&](int64_t floats) {
      float* piece = base == nullptr ? nullptr : base + total;
      total += floats;
      return piece;
    };
    if (b.empty()) return;
    if (b.narrow()) {
      x = take(b.token_block * b.hidden);
      weight = take(b.class_block * b.hidden);
    }
    if (forward) {
      max = take(b.token_block);
      sum = take(b.token_block);
      label_logit = take(b.token_block);
    } else if (b.narrow()) {
      dx = take(want_dx ? b.dx_rows * b.hidden : 0);
      dweight = take(want_dweight ? b.class_block * b.hidden : 0);
    }
    logits = take((b.token_block - 1) * b.logits_stride + b.class_block);
  }
};

// --- Schemas ---

void CheckOperands(const InferContext& c) {
  RequireFloat(c, "x");
  RequireDTypeLike(c, "weight", "x");
  const Shape& x = c.shape("x");
  const Shape& weight = c.shape("weight");
  c.Require(x.rank() >= 1 && weight.rank() == 2,
            "x must be [.., hidden] and weight [classes, hidden]");
  c.Require(x.dim(-1) == weight[1], "x ", x, " and weight ", weight,
            " do not match: hidden sizes ", x.dim(-1), " and ", weight[1]);
  c.Require(weight[0] > 0 && weight[1] > 0, "weight ", weight, " is empty");
  RequireLabels(c, x);
  c.Require(c.attrs().GetInt("chunk_tokens") >= 0, "chunk_tokens is ",
            c.attrs().GetInt("chunk_tokens"));
}

void Infer(InferContext& c) {
  CheckOperands(c);
  c.Set("loss_sum", DType::kFp32, Shape{1});
  c.Set("lse", DType::kFp32, LeadingDims(c.shape("x")));
}

void InferGrad(InferContext& c) {
  CheckOperands(c);
  RequireDType(c, "lse", DType::kFp32);
  RequireShape(c, "lse", LeadingDims(c.shape("x")));
  RequireDType(c, "dloss", DType::kFp32);
  RequireShape(c, "dloss", Shape{1});
  RequireAccumulator(c, c.dtype("weight"), c.shape("weight"));
  c.Set("dx", c.dtype("x"), c.shape("x"));
  c.Set("dweight", c.dtype("weight"), c.shape("weight"));
}

void Grad(GradContext& c) {
  const Op& op = c.op();
  const VarId dloss = c.OutGrad("loss_sum");
  if (dloss == kNoId) return;
  std::vector<Slot> outputs;
  if (c.NeedsGrad("x")) outputs.push_back({"dx", {c.InGrad("x")}});
  if (c.NeedsGrad("weight")) {
    outputs.push_back({"dweight", {c.InGrad("weight")}});
  }
  if (outputs.empty()) return;
  c.Emit("linear_cross_entropy_grad",
         {{"x", {op.In1("x")}},
          {"weight", {op.In1("weight")}},
          {"labels", {op.In1("labels")}},
          {"lse", {op.Out1("lse")}},
          {"dloss", {dloss}}},
         std::move(outputs), op.attrs);
}

Blocks BlocksOf(const OpView& op) {
  return Blocks(op.In("x").dtype, op.In("x").shape, op.In("weight").shape,
                op.attrs());
}

Blocks BlocksOf(const KernelContext& c) {
  return Blocks(c.In("x").dtype, c.In("x").shape, c.In("weight").shape,
                c.attrs());
}

bool WantsDx(const Op& op) { return !op.Out("dx").empty(); }
bool WantsDweight(const Op& op) { return !op.Out("dweight").empty(); }

int64_t ForwardWorkspace(const OpView& op) {
  return Scratch(BlocksOf(op), true, false, false, nullptr).total *
         static_cast<int64_t>(sizeof(float));
}

int64_t BackwardWorkspace(const OpView& op) {
  return Scratch(BlocksOf(op), false, WantsDx(op.op()), WantsDweight(op.op()),
                 nullptr)
             .total *
         static_cast<int64_t>(sizeof(float));
}

LinearCrossEntropyBlocks CudaBlocksOf(const OpView& op) {
  const Blocks b = BlocksOf(op);
  return LinearCrossEntropyBlocks(b.dtype, b.tokens, b.classes, b.hidden,
                                  op.attrs().GetInt("chunk_tokens"));
}

int64_t CudaForwardWorkspace(const OpView& op) {
  LinearCrossEntropyBlocks blocks = CudaBlocksOf(op);
  blocks.LayOutForward();
  return blocks.total_bytes;
}

int64_t CudaBackwardWorkspace(const OpView& op) {
  LinearCrossEntropyBlocks blocks = CudaBlocksOf(op);
  blocks.LayOutBackward(WantsDx(op.op()));
  return blocks.total_bytes;
}

double ProductFlops(const Blocks& b) {
  return 2.0 * static_cast<double>(b.tokens) * static_cast<double>(b.classes) *
         static_cast<double>(b.hidden);
}

OpCost ForwardCost(const OpView& op) {
  return {ProductFlops(BlocksOf(op)), OperandBytes(op)};
}

OpCost BackwardCost(const OpView& op) {
  const Blocks b = BlocksOf(op);
  const bool dx = WantsDx(op.op()), dweight = WantsDweight(op.op());
  const int passes =
      dx && dweight && b.narrow() && b.dx_rows < b.tokens ? 2 : 1;
  return {ProductFlops(b) * (passes + (dx ? 1 : 0) + (dweight ? 1 : 0)),
          OperandBytes(op)};
}

// --- Kernels ---

// Rows of an operand as fp32, kept while the same rows are asked for.
class RowBlock {
 public:
  RowBlock(const Tensor& tensor, int64_t hidden, float* buffer)
      : tensor_(tensor), hidden_(hidden), buffer_(buffer) {}

  const float* Load(int64_t begin, int64_t rows) {
    if (tensor_.dtype == DType::kFp32) {
      return tensor_.as<float>() + begin * hidden_;
    }
    if (begin != begin_ || rows != rows_) {
      ConvertMatrixToFloat(
          tensor_.dtype,
          ElementAt(tensor_.dtype, tensor_.data, begin * hidden_), hidden_,
          buffer_, hidden_, rows, hidden_);
      begin_ = begin;
      rows_ = rows;
    }
    return buffer_;
  }

 private:
  const Tensor& tensor_;
  int64_t hidden_;
  float* buffer_;
  int64_t begin_ = -1, rows_ = -1;
};

void LinearCrossEntropyKernel(KernelContext& c) {
  const Blocks b = BlocksOf(c);
  const Tensor& labels = c.In("labels");
  const int32_t* label = labels.as<int32_t>();
  const int64_t ignore = c.attrs().GetInt("ignore_index");
  CheckLabels(labels, ignore, b.classes);
  const Scratch s(b, true, false, false, static_cast<float*>(c.workspace()));
  RowBlock x(c.In("x"), b.hidden, s.x);
  RowBlock weight(c.In("weight"), b.hidden, s.weight);
  float* lse = c.Out("lse").as<float>();
  double loss = 0;
  for (int64_t t = 0; t < b.tokens; t += b.token_block) {
    const int64_t rows = std::min(b.token_block, b.tokens - t);
    const float* x_rows = x.Load(t, rows);
    std::fill_n(s.max, rows, RunningLse{}.max);
    std::fill_n(s.sum, rows, 0.0f);
    for (int64_t v = 0; v < b.classes; v += b.class_block) {
      const int64_t cols = std::min(b.class_block, b.classes - v);
      Sgemm(false, true, rows, cols, b.hidden, 1.0f, x_rows, b.hidden,
            weight.Load(v, cols), b.hidden, 0.0f, s.logits, b.logits_stride);
      ParallelFor(rows, rows * cols, [&](int64_t i) {
        float* row = s.logits + i * b.logits_stride;
        RoundToDType(b.dtype, row, cols);
        RunningLse running{s.max[i], s.sum[i]};
        running.Add(row, cols);
        s.max[i] = running.max;
        s.sum[i] = running.sum;
        const int64_t column = label[t + i] - v;
        if (column >= 0 && column < cols) s.label_logit[i] = row[column];
      });
    }
    for (int64_t i = 0; i < rows; ++i) {
      lse[t + i] = RunningLse{s.max[i], s.sum[i]}.value();
      if (label[t + i] != ignore) loss += lse[t + i] - s.label_logit[i];
    }
  }
  c.Out("loss_sum").as<float>()[0] = static_cast<float>(loss);
}

// One sweep over classes for tokens [begin, end), adding up dx, dweight or
// both.
class Backward {
 public:
  explicit Backward(KernelContext& c)
      : b_(BlocksOf(c)),
        dx_(c.TryOut("dx")),
        dweight_(c.TryOut("dweight")),
        s_(b_, false, dx_ != nullptr, dweight_ != nullptr,
           static_cast<float*>(c.workspace())),
        x_(c.In("x"), b_.hidden, s_.x),
        weight_(c.In("weight"), b_.hidden, s_.weight),
        label_(c.In("labels").as<int32_t>()),
        lse_(c.In("lse").as<float>()),
        dloss_(c.In("dloss").as<float>()[0]),
        ignore_(c.attrs().GetInt("ignore_index")),
        accumulate_(c.attrs().GetBool("accumulate")) {}

  void Run() {
    if (!b_.narrow() || dx_ == nullptr || b_.dx_rows >= b_.tokens) {
      return Sweep(0, b_.tokens, dx_ != nullptr, dweight_ != nullptr);
    }
    for (int64_t t = 0; t < b_.tokens; t += b_.dx_rows) {
      Sweep(t, std::min(b_.tokens, t + b_.dx_rows), true, false);
    }
    if (dweight_ != nullptr) Sweep(0, b_.tokens, false, true);
  }

 private:
  void Sweep(int64_t begin, int64_t end, bool want_dx, bool want_dweight) {
    const int64_t h = b_.hidden;
    float* dx = want_dx ? SumsOf(*dx_, s_.dx, begin) : nullptr;
    for (int64_t v = 0; v < b_.classes; v += b_.class_block) {
      const int64_t cols = std::min(b_.class_block, b_.classes - v);
      const float* weight = weight_.Load(v, cols);
      float* dweight =
          want_dweight ? SumsOf(*dweight_, s_.dweight, v) : nullptr;
      if (want_dweight && accumulate_ && b_.narrow()) {
        ConvertMatrixToFloat(b_.dtype,
                             ElementAt(b_.dtype, dweight_->data, v * h), h,
                             dweight, h, cols, h);
      }
      for (int64_t t = begin; t < end; t += b_.token_block) {
        const int64_t rows = std::min(b_.token_block, end - t);
        const float* x = x_.Load(t, rows);
        Sgemm(false, true, rows, cols, h, 1.0f, x, h, weight, h, 0.0f,
              s_.logits, b_.logits_stride);
        ToLogitGrads(t, rows, v, cols);
        if (want_dweight) {
          Sgemm(true, false, cols, h, rows, 1.0f, s_.logits, b_.logits_stride,
                x, h, accumulate_ || t > begin ? 1.0f : 0.0f, dweight, h);
        }
        if (want_dx) {
          Sgemm(false, false, rows, h, cols, 1.0f, s_.logits, b_.logits_stride,
                weight, h, v > 0 ? 1.0f : 0.0f, dx + (t - begin) * h, h);
        }
      }
      if (want_dweight && b_.narrow()) Store(dweight, *dweight_, v, cols);
    }
    if (want_dx && b_.narrow()) Store(dx, *dx_, begin, end - begin);
  }

  // The sums of rows from `row` on: the output itself in fp32.
  float* SumsOf(const Tensor& out, float* sums, int64_t row) const {
    return b_.narrow() ? sums : out.as<float>() + row * b_.hidden;
  }

  void Store(const float* sums, const Tensor& out, int64_t row, int64_t rows) {
    ConvertMatrixFromFloat(b_.dtype, sums, b_.hidden,
                           ElementAt(b_.dtype, out.data, row * b_.hidden),
                           b_.hidden, rows, b_.hidden);
  }

  // Turns the block of logits into their grads; see cross_entropy_grad.
  void ToLogitGrads(int64_t t, int64_t rows, int64_t v, int64_t cols) {
    ParallelFor(rows, rows * cols, [&](int64_t i) {
      float* row = s_.logits + i * b_.logits_stride;
      const int64_t label = label_[t + i];
      if (label == ignore_) {
        std::fill(row, row + cols, 0.0f);
        return;
      }
      RoundToDType(b_.dtype, row, cols);
      Vec().exp_sum(row, lse_[t + i], row, cols);
      if (label >= v && label < v + cols) row[label - v] -= 1.0f;
      Vec().scale(row, dloss_, row, cols);
      RoundToDType(b_.dtype, row, cols);
    });
  }

  const Blocks b_;
  const Tensor* dx_;
  const Tensor* dweight_;
  const Scratch s_;
  RowBlock x_, weight_;
  const int32_t* label_;
  const float* lse_;
  const float dloss_;
  const int64_t ignore_;
  const bool accumulate_;
};

void LinearCrossEntropyGradKernel(KernelContext& c) {
  CheckLabels(c.In("labels"), c.attrs().GetInt("ignore_index"),
              c.In("weight").shape[0]);
  if (c.In("labels").numel > 0) return Backward(c).Run();
  const Tensor* dweight = c.TryOut("dweight");
  if (dweight == nullptr || c.attrs().GetBool("accumulate")) return;
  std::fill_n(dweight->as<std::byte>(),
              ByteSize(dweight->dtype, dweight->shape), std::byte{0});
}

}  // namespace

void RegisterLinearCrossEntropy(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema s;
  s.type = "linear_cross_entropy";
  s.inputs = {{"x"}, {"weight"}, {"labels"}};
  s.outputs = {{"loss_sum"}, {"lse"}};
  s.attrs = {IntAttr("ignore_index", -100), IntAttr("chunk_tokens", 0)};
  s.infer = Infer;
  s.grad = Grad;
  s.workspace_bytes = ForwardWorkspace;
  s.cuda_workspace_bytes = CudaForwardWorkspace;
  s.cost = ForwardCost;
  ops.Register(std::move(s));
  kernels.Register("linear_cross_entropy", DeviceKind::kCpu,
                   LinearCrossEntropyKernel);

  OpSchema g;
  g.type = "linear_cross_entropy_grad";
  g.inputs = {{"x"},   {"weight"}, {"labels"},
              {"lse"}, {"dloss"},  Optional("acc")};
  g.outputs = {Optional("dx"), Optional("dweight")};
  g.attrs = {IntAttr("ignore_index", -100), IntAttr("chunk_tokens", 0),
             BoolAttr("accumulate", false)};
  g.infer = InferGrad;
  g.workspace_bytes = BackwardWorkspace;
  g.cuda_workspace_bytes = CudaBackwardWorkspace;
  g.cost = BackwardCost;
  g.aliases = {{"dweight", "acc"}};
  ops.Register(std::move(g));
  kernels.Register("linear_cross_entropy_grad", DeviceKind::kCpu,
                   LinearCrossEntropyGradKernel);
}

}  // namespace plo
