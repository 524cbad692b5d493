// fill_constant, fill_normal, fill_uniform: initial values and constants.
//
// Random values depend on (program seed, key, element) only: not on the number
// of ranks or threads, nor on the bucket or slice a param lives in.
#include <cmath>

#include "framework/ir/op_registry.h"
#include "operators/elementwise.h"
#include "operators/infer_util.h"
#include "operators/random.h"

namespace plo {
namespace {

void InferFill(InferContext& ctx) {
  const DType dtype = ParseDType(ctx.attrs().GetString("dtype"));
  Shape shape(ctx.attrs().GetInts("shape"));
  try {
    ByteSize(dtype, shape);
  } catch (const Error& error) {
    ctx.Fail(error.message());
  }
  ctx.Set("out", dtype, std::move(shape));
}

void InferRandomFill(InferContext& ctx) {
  InferFill(ctx);
  const DType dtype = ctx.results().front().dtype;
  ctx.Require(IsFloat(dtype), "dtype must be a float type, is ", dtype);
}

template <typename T>
void FillWith(const Tensor& out, T value) {
  ParallelRanges(out.numel, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    std::fill(out.as<T>() + begin, out.as<T>() + end, value);
  });
}

void FillConstantKernel(KernelContext& ctx) {
  const Tensor& out = ctx.Out("out");
  const double value = ctx.attrs().GetFloat("value");
  switch (out.dtype) {
    case DType::kFp32:
      return FillWith(out, static_cast<float>(value));
    case DType::kBf16:
      return FillWith(out, FloatToBf16Bits(static_cast<float>(value)));
    case DType::kFp16:
      return FillWith(out, FloatToFp16Bits(static_cast<float>(value)));
    case DType::kInt32:
      return FillWith(out, static_cast<int32_t>(value));
    case DType::kInt64:
      return FillWith(out, static_cast<int64_t>(value));
    case DType::kBool:
      return FillWith(out, static_cast<uint8_t>(value != 0));
  }
}

// draw(key, sample 0, block, n, values), then values * factor + bias.
template <typename Draw>
void FillRandom(KernelContext& ctx, const Draw& draw, double factor,
                double bias) {
  const Tensor& out = ctx.Out("out");
  const std::string& name = ctx.attrs().GetString("key");
  const uint64_t key =
      RandomKey(ctx.env().seed,
                HashBytes(name.data(), static_cast<int64_t>(name.size())));
  const FloatLoops& loops = GetFloatLoops();
  ParallelRanges(out.numel, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    float values[kRowChunk];
    ForRowChunks(end - begin, [&](int64_t offset, int64_t n) {
      const int64_t at = begin + offset;
      draw(key, 0, static_cast<uint64_t>(at / 4), n, values);
      loops.scale(values, static_cast<float>(factor), static_cast<float>(bias),
                  n, values);
      StoreFloats(out.dtype, values, out.data, at, n);
    });
  });
}

void FillNormalKernel(KernelContext& ctx) {
  FillRandom(ctx, GetFloatLoops().normal, ctx.attrs().GetFloat("std"),
             ctx.attrs().GetFloat("mean"));
}

void FillUniformKernel(KernelContext& ctx) {
  const double low = ctx.attrs().GetFloat("low");
  const double high = ctx.attrs().GetFloat("high");
  FillRandom(ctx, GetFloatLoops().uniform, high - low, low);
}

OpSchema FillSchema(const char* type, std::vector<AttrDef> attrs) {
  OpSchema schema;
  schema.type = type;
  schema.outputs = {{"out"}};
  schema.attrs = std::move(attrs);
  schema.attrs.push_back({"shape", AttrType::kInts});
  schema.attrs.push_back({"dtype", AttrType::kString});
  return schema;
}

}  // namespace

void RegisterFill(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema constant =
      FillSchema("fill_constant", {{"value", AttrType::kFloat}});
  constant.infer = InferFill;
  constant.where = OpSchema::Where::kDeviceOrHost;
  ops.Register(std::move(constant));
  kernels.Register("fill_constant", DeviceKind::kCpu, FillConstantKernel);

  OpSchema normal = FillSchema("fill_normal", {FloatAttr("mean", 0.0),
                                               FloatAttr("std", 1.0),
                                               {"key", AttrType::kString}});
  normal.infer = InferRandomFill;
  normal.cost = CostPerElement(60);
  ops.Register(std::move(normal));
  kernels.Register("fill_normal", DeviceKind::kCpu, FillNormalKernel);

  OpSchema uniform = FillSchema("fill_uniform", {FloatAttr("low", 0.0),
                                                 FloatAttr("high", 1.0),
                                                 {"key", AttrType::kString}});
  uniform.infer = InferRandomFill;
  uniform.cost = CostPerElement(20);
  ops.Register(std::move(uniform));
  kernels.Register("fill_uniform", DeviceKind::kCpu, FillUniformKernel);
}

}  // namespace plo
