// dropout and its gradient: the CPU's mask, bit for bit.
#include "operators/packs.cuh"
#include "operators/random.h"

namespace plo {
namespace {

constexpr int kThreads = 256;

struct Mask {
  uint64_t key;
  uint64_t first_sample;  // of the run, of this tensor's first
  float threshold, factor;
};

// A block takes part of one sample; `parts` blocks take all of it.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    DropoutSamples(int64_t parts, RowAccess access, Mask mask, const T* x,
                   T* out) {
  constexpr int kCount = kPackOf<T>;
  static_assert(kCount % 4 == 0, "packs hold whole blocks of the generator");
  const int64_t sample = blockIdx.x / parts;
  const int64_t at = (blockIdx.x % parts * kThreads + threadIdx.x) * kCount;
  if (at >= access.n) return;
  Floats<kCount> values = LoadRow<kCount>(x + sample * access.n, at, access);
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const PhiloxBlock words =
        RandomWords(mask.key, mask.first_sample + static_cast<uint64_t>(sample),
                    static_cast<uint64_t>(at + i) / 4);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float kept = values.value[i + k] * mask.factor;
      values.value[i + k] =
          UniformFromWord(words.word[k]) >= mask.threshold ? kept : 0.0f;
    }
  }
  StoreRow(values, out + sample * access.n, at, access);
}

void Apply(KernelContext& context, const Tensor& x, const Tensor& out) {
  if (x.numel == 0) return;
  const KernelEnv& env = context.env();
  const StepInfo& step = context.step();
  const double p = context.attrs().GetFloat("p");
  const int64_t samples = x.shape.rank() == 0 ? 1 : x.shape[0];
  const int64_t length = x.numel / samples;
  const Mask mask = {
      RandomKey(env.seed, static_cast<uint64_t>(context.op().random_id)),
      GlobalSample(step.data_step, env.accumulate_steps, step.micro_index,
                   env.world_size, env.rank, samples, 0),
      static_cast<float>(p), static_cast<float>(1.0 / (1.0 - p))};
  DispatchDeviceFloat(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* from = x.as<const T>();
    T* to = out.as<T>();
    const int64_t parts = DivideUp(length, kThreads * kPackOf<T>);
    DropoutSamples<<<static_cast<unsigned>(samples * parts), kThreads, 0,
                     StreamOf(context)>>>(
        parts, MakeRowAccess<T>(length, from, to), mask, from, to);
    CheckLaunch("DropoutSamples");
  });
}

void DropoutKernel(KernelContext& context) {
  Apply(context, context.In("x"), context.Out("out"));
}

void DropoutGradKernel(KernelContext& context) {
  Apply(context, context.In("dout"), context.Out("dx"));
}

}  // namespace

void RegisterDropoutCuda(KernelRegistry& kernels) {
  kernels.Register("dropout", DeviceKind::kCuda, DropoutKernel);
  kernels.Register("dropout_grad", DeviceKind::kCuda, DropoutGradKernel);
}

}  // namespace plo
