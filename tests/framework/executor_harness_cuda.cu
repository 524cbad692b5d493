// The test ops of executor_harness.h on CUDA.
#include <cmath>

#include "operators/cuda_util.cuh"
#include "tests/framework/executor_harness.h"

namespace plo::harness {
namespace {

// Calls body(i) for every i below n, in one small grid.
template <typename Body>
__global__ void ForEach(int64_t n, Body body) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += stride) {
    body(i);
  }
}

template <typename Body>
void Run(KernelContext& context, int64_t n, Body body) {
  if (n == 0) return;
  ForEach<<<4, 128, 0, StreamOf(context)>>>(n, body);
  CheckLaunch("test kernel");
}

void Fill(KernelContext& context) {
  float* out = context.Out("out").as<float>();
  const auto value = static_cast<float>(context.attrs().GetFloat("value"));
  Run(context, context.Out("out").numel,
      [=] __device__(int64_t i) { out[i] = value; });
}

void Scale(KernelContext& context) {
  const float* x = context.In("x").as<float>();
  float* out = context.Out("out").as<float>();
  const auto factor = static_cast<float>(context.attrs().GetFloat("factor"));
  Run(context, context.Out("out").numel,
      [=] __device__(int64_t i) { out[i] = x[i] * factor; });
}

void Add(KernelContext& context) {
  const float* x = context.In("x").as<float>();
  const float* y = context.In("y").as<float>();
  float* out = context.Out("out").as<float>();
  Run(context, context.Out("out").numel,
      [=] __device__(int64_t i) { out[i] = x[i] + y[i]; });
}

void Copy(KernelContext& context) {
  const Tensor& x = context.In("x");
  CheckCuda(cudaMemcpyAsync(context.Out("out").data, x.data,
                            static_cast<size_t>(x.numel * SizeOf(x.dtype)),
                            cudaMemcpyDefault, StreamOf(context)),
            "cudaMemcpyAsync");
}

void SliceMicro(KernelContext& context) {
  const int64_t n = context.Out("out").numel;
  const float* x = context.In("x").as<float>() + context.step().micro_index * n;
  float* out = context.Out("out").as<float>();
  Run(context, n, [=] __device__(int64_t i) { out[i] = x[i]; });
}

void Accumulate(KernelContext& context) {
  const float* x = context.In("x").as<float>();
  float* acc = context.Out("acc").as<float>();
  const bool first = context.step().micro_index == 0;
  Run(context, context.Out("acc").numel,
      [=] __device__(int64_t i) { acc[i] = first ? x[i] : acc[i] + x[i]; });
}

void WriteStep(KernelContext& context) {
  float* out = context.Out("out").as<float>();
  const auto data_step = static_cast<float>(context.step().data_step);
  const auto micro = static_cast<float>(context.step().micro_index);
  Run(context, context.Out("out").numel, [=] __device__(int64_t i) {
    out[i] = i == 0 ? data_step : i == 1 ? micro : 0.0f;
  });
}

void CheckIndex(KernelContext& context) {
  const float* x = context.In("x").as<float>();
  float* out = context.Out("out").as<float>();
  DeviceErrorSlot* const slot = context.env().device_error;
  const OpId op = context.op().id;
  Run(context, context.Out("out").numel, [=] __device__(int64_t i) {
    out[i] = x[i];
    if (x[i] < kIndexBound) return;
    out[i] = NAN;
    ReportIdOutOfRange(slot, op, i, static_cast<int64_t>(x[i]), kIndexBound);
  });
}

void Overrun(KernelContext& context) {
  Copy(context);
  const Tensor& out = context.Out("out");
  char* end = out.as<char>() + out.numel * 4;
  Run(context, 1, [=] __device__(int64_t) { *end ^= 0x55; });
}

void Workspace(KernelContext& context) {
  Copy(context);
  CheckCuda(
      cudaMemsetAsync(context.workspace(), 0x11,
                      static_cast<size_t>(context.attrs().GetInt("touch")),
                      StreamOf(context)),
      "cudaMemsetAsync");
}

void Stray(KernelContext& context) {
  Copy(context);
  float* x = context.In("x").as<float>();
  Run(context, 1, [=] __device__(int64_t) { x[0] += 1; });
}

}  // namespace

void RegisterCudaTestOps() {
  const auto add = [](const char* type, Kernel kernel) {
    KernelRegistry::Global().Register(type, DeviceKind::kCuda, kernel);
  };
  add("test_fill", Fill);
  add("test_scale", Scale);
  add("test_add", Add);
  add("test_slice", SliceMicro);
  add("test_accumulate", Accumulate);
  add("test_step", WriteStep);
  add("test_index", CheckIndex);
  add("test_overrun", Overrun);
  add("test_workspace", Workspace);
  add("test_stray", Stray);
  add("copy_h2d", Copy);
  add("copy_d2h", Copy);
}

}  // namespace plo::harness
