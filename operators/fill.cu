// fill_constant, fill_normal, fill_uniform: the CPU's values, bit for bit.
#include <cstring>
#include <string>

#include "operators/packs.cuh"
#include "operators/random.h"

namespace plo {
namespace {

constexpr int kThreads = 256;

template <typename U>
__global__ void __launch_bounds__(kThreads)
    FillPacks(RowAccess access, U value, U* out) {
  constexpr int kCount = kPackOf<U>;
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (access.vector && at < access.n) {
    U values[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = value;
    uint4 raw;
    __builtin_memcpy(&raw, values, sizeof raw);
    *reinterpret_cast<uint4*>(out + at) = raw;
    return;
  }
  for (int64_t i = at; i < min(access.n, at + kCount); ++i) out[i] = value;
}

template <typename U>
void FillWith(KernelContext& context, const Tensor& out, U value) {
  if (out.numel == 0) return;
  U* to = out.as<U>();
  FillPacks<<<static_cast<unsigned>(DivideUp(out.numel, kThreads * kPackOf<U>)),
              kThreads, 0, StreamOf(context)>>>(MakeRowAccess<U>(out.numel, to),
                                                value, to);
  CheckLaunch("FillPacks");
}

// The bits of `value` in a 16-bit float type, on the host.
template <typename T>
uint16_t BitsOf(T value) {
  static_assert(sizeof(T) == sizeof(uint16_t));
  uint16_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

void FillConstantKernel(KernelContext& context) {
  const Tensor& out = context.Out("out");
  const double value = context.attrs().GetFloat("value");
  const auto single = static_cast<float>(value);
  switch (out.dtype) {
    case DType::kFp32:
      return FillWith(context, out, single);
    case DType::kBf16:
      return FillWith(context, out, BitsOf(__float2bfloat16_rn(single)));
    case DType::kFp16:
      return FillWith(context, out, BitsOf(__float2half_rn(single)));
    case DType::kInt32:
      return FillWith(context, out, static_cast<int32_t>(value));
    case DType::kInt64:
      return FillWith(context, out, static_cast<int64_t>(value));
    case DType::kBool:
      return FillWith(context, out, static_cast<uint8_t>(value != 0));
  }
}

// out = variate * factor + bias, one rounding to fp32 and one to T.
template <bool kNormal, typename T>
__global__ void __launch_bounds__(kThreads)
    FillRandom(RowAccess access, uint64_t key, float factor, float bias,
               T* out) {
  constexpr int kCount = kPackOf<T>;
  static_assert(kCount % 4 == 0, "packs hold whole blocks of the generator");
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (at >= access.n) return;
  Floats<kCount> values;
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const PhiloxBlock words =
        RandomWords(key, 0, static_cast<uint64_t>(at + i) / 4);
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      float* pair = &values.value[i + k];
      if constexpr (kNormal) {
        const NormalPair normal =
            NormalFromWords(words.word[k], words.word[k + 1]);
        pair[0] = normal.first;
        pair[1] = normal.second;
      } else {
        pair[0] = UniformFromWord(words.word[k]);
        pair[1] = UniformFromWord(words.word[k + 1]);
      }
      pair[0] = __builtin_fmaf(pair[0], factor, bias);
      pair[1] = __builtin_fmaf(pair[1], factor, bias);
    }
  }
  StoreRow(values, out, at, access);
}

template <bool kNormal>
void Random(KernelContext& context, double factor, double bias) {
  const Tensor& out = context.Out("out");
  if (out.numel == 0) return;
  const std::string& name = context.attrs().GetString("key");
  const uint64_t key =
      RandomKey(context.env().seed,
                HashBytes(name.data(), static_cast<int64_t>(name.size())));
  DispatchDeviceFloat(out.dtype, [&](auto type) {
    using T = decltype(type);
    T* to = out.as<T>();
    FillRandom<kNormal>
        <<<static_cast<unsigned>(DivideUp(out.numel, kThreads * kPackOf<T>)),
           kThreads, 0, StreamOf(context)>>>(MakeRowAccess<T>(out.numel, to),
                                             key, static_cast<float>(factor),
                                             static_cast<float>(bias), to);
    CheckLaunch("FillRandom");
  });
}

void FillNormalKernel(KernelContext& context) {
  Random<true>(context, context.attrs().GetFloat("std"),
               context.attrs().GetFloat("mean"));
}

void FillUniformKernel(KernelContext& context) {
  const double low = context.attrs().GetFloat("low");
  const double high = context.attrs().GetFloat("high");
  Random<false>(context, high - low, low);
}

}  // namespace

void RegisterFillCuda(KernelRegistry& kernels) {
  kernels.Register("fill_constant", DeviceKind::kCuda, FillConstantKernel);
  kernels.Register("fill_normal", DeviceKind::kCuda, FillNormalKernel);
  kernels.Register("fill_uniform", DeviceKind::kCuda, FillUniformKernel);
}

}  // namespace plo
