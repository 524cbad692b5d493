// accumulate: sums over the micro-steps of a step, in fp32; zero_ranges: keeps
// the padding of a bucket at zero.
#include <algorithm>

#include "framework/ir/op_registry.h"
#include "operators/elementwise.h"
#include "operators/infer_util.h"

namespace plo {
namespace {

void InferAccumulate(InferContext& ctx) {
  RequireFloat(ctx, "x");
  RequireDType(ctx, "acc", DType::kFp32);
  RequireShape(ctx, "acc", ctx.shape("x"));
  SetLike(ctx, "acc", "acc");
}

// The first micro-step overwrites, so nothing needs clearing.
void AccumulateKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  const Tensor& acc = ctx.Out("acc");
  if (ctx.step().micro_index > 0) {
    return MapBinary(ctx.In("acc"), x, acc, GetFloatLoops().add);
  }
  ParallelRanges(x.numel, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    ConvertToFloat(x.dtype, ElementAt(x.dtype, x.data, begin),
                   acc.as<float>() + begin, end - begin);
  });
}

void InferZeroRanges(InferContext& ctx) {
  const std::vector<int64_t>& begins = ctx.attrs().GetInts("begins");
  const std::vector<int64_t>& ends = ctx.attrs().GetInts("ends");
  ctx.Require(begins.size() == ends.size(), "begins and ends differ in number");
  for (size_t i = 0; i < begins.size(); ++i) {
    ctx.Require(0 <= begins[i] && begins[i] <= ends[i] &&
                    ends[i] <= ctx.shape("x").numel(),
                "range [", begins[i], ", ", ends[i], ") does not lie in x");
  }
  SetLike(ctx, "x", "x");
}

void ZeroRangesKernel(KernelContext& ctx) {
  const Tensor& x = ctx.Out("x");
  const std::vector<int64_t>& begins = ctx.attrs().GetInts("begins");
  const std::vector<int64_t>& ends = ctx.attrs().GetInts("ends");
  const int64_t size = SizeOf(x.dtype);
  for (size_t i = 0; i < begins.size(); ++i) {
    std::byte* data = x.as<std::byte>();
    std::fill(data + begins[i] * size, data + ends[i] * size, std::byte{0});
  }
}

OpCost ZeroRangesCost(const OpView& op) {
  const std::vector<int64_t>& begins = op.attrs().GetInts("begins");
  const std::vector<int64_t>& ends = op.attrs().GetInts("ends");
  int64_t elements = 0;
  for (size_t i = 0; i < begins.size(); ++i) elements += ends[i] - begins[i];
  return {0, static_cast<double>(elements * SizeOf(op.In("x").dtype))};
}

}  // namespace

void RegisterAccumulate(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema accumulate;
  accumulate.type = "accumulate";
  accumulate.inputs = {{"x"}, {"acc"}};
  accumulate.outputs = {{"acc"}};
  accumulate.infer = InferAccumulate;
  accumulate.cost = CostPerElement(1);
  accumulate.aliases = {{"acc", "acc"}};
  ops.Register(std::move(accumulate));
  kernels.Register("accumulate", DeviceKind::kCpu, AccumulateKernel);

  OpSchema zero;
  zero.type = "zero_ranges";
  zero.inputs = {{"x"}};
  zero.outputs = {{"x"}};
  zero.attrs = {{"begins", AttrType::kInts}, {"ends", AttrType::kInts}};
  zero.infer = InferZeroRanges;
  zero.cost = ZeroRangesCost;
  zero.aliases = {{"x", "x"}};
  ops.Register(std::move(zero));
  kernels.Register("zero_ranges", DeviceKind::kCpu, ZeroRangesKernel);
}

}  // namespace plo
