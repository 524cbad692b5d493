// accumulate and zero_ranges.
#include <algorithm>

#include "operators/elementwise.cuh"

namespace plo {
namespace {

struct Identity {
  __device__ float operator()(float x) const { return x; }
};
struct Add {
  __device__ float operator()(float x, float y) const { return x + y; }
};

// The first micro-step overwrites, so nothing needs clearing.
void AccumulateKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  float* acc = context.Out("acc").as<float>();
  DispatchDeviceFloat(x.dtype, [&](auto type) {
    const auto* values = x.as<const decltype(type)>();
    if (context.step().micro_index > 0) {
      LaunchMap(StreamOf(context), x.numel, Add{}, acc,
                static_cast<const float*>(acc), values);
    } else {
      LaunchMap(StreamOf(context), x.numel, Identity{}, acc, values);
    }
  });
}

// Gaps between params are many and short; a launch takes a group of them.
constexpr int kRangeGroup = 64;
struct Ranges {
  int64_t begin[kRangeGroup], end[kRangeGroup];
};

template <typename T>
__global__ void ZeroRangesOf(Ranges ranges, T* x) {
  const int64_t begin = ranges.begin[blockIdx.y];
  const int64_t end = ranges.end[blockIdx.y];
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i =
           begin + static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < end; i += stride) {
    x[i] = T{0};
  }
}

void ZeroRangesKernel(KernelContext& context) {
  const Tensor& x = context.Out("x");
  const std::vector<int64_t>& begins = context.attrs().GetInts("begins");
  const std::vector<int64_t>& ends = context.attrs().GetInts("ends");
  constexpr int kThreads = 128;
  Ranges ranges;
  for (size_t first = 0; first < begins.size(); first += kRangeGroup) {
    const size_t count = std::min<size_t>(kRangeGroup, begins.size() - first);
    int64_t longest = 0;
    for (size_t i = 0; i < count; ++i) {
      ranges.begin[i] = begins[first + i];
      ranges.end[i] = ends[first + i];
      longest = std::max(longest, ranges.end[i] - ranges.begin[i]);
    }
    if (longest == 0) continue;
    const dim3 grid(static_cast<unsigned>(
                        std::min(DivideUp(longest, kThreads), int64_t{256})),
                    static_cast<unsigned>(count));
    const cudaStream_t stream = StreamOf(context);
    switch (SizeOf(x.dtype)) {
      case 1:
        ZeroRangesOf<<<grid, kThreads, 0, stream>>>(ranges, x.as<uint8_t>());
        break;
      case 2:
        ZeroRangesOf<<<grid, kThreads, 0, stream>>>(ranges, x.as<uint16_t>());
        break;
      case 4:
        ZeroRangesOf<<<grid, kThreads, 0, stream>>>(ranges, x.as<uint32_t>());
        break;
      default:
        ZeroRangesOf<<<grid, kThreads, 0, stream>>>(ranges, x.as<uint64_t>());
    }
    CheckLaunch("ZeroRanges");
  }
}

}  // namespace

void RegisterAccumulateCuda(KernelRegistry& kernels) {
  kernels.Register("accumulate", DeviceKind::kCuda, AccumulateKernel);
  kernels.Register("zero_ranges", DeviceKind::kCuda, ZeroRangesKernel);
}

}  // namespace plo
