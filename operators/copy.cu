// copy_d2h, copy_h2d: asynchronous copies between device and pinned memory.
//
// On streams of their own they are the copy engines'. On the compute stream,
// where feeds and fetches are, threads copy: an engine takes the copies of all
// streams in turn, so that a few bytes would wait for the states on their way
// and for all that those wait for, and with them the next forward.
#include <algorithm>

#include "operators/cuda_util.cuh"
#include "operators/packs.cuh"
#include "operators/strided_copy.cuh"

namespace plo {
namespace {

int64_t Bytes(const Tensor& x) { return x.numel * SizeOf(x.dtype); }

const std::byte* At(const Tensor& x) {
  return static_cast<const std::byte*>(x.data);
}

// Vars of one size at equal distances, as the states of a bucket are, are the
// rows of one copy.
bool IsGrid(const KernelContext& context, int count, int64_t from_pitch,
            int64_t to_pitch) {
  constexpr int64_t kMostPitch = (int64_t{1} << 31) - 1;
  const int64_t bytes = Bytes(context.In("x"));
  for (int64_t pitch : {from_pitch, to_pitch}) {
    if (pitch < bytes || pitch > kMostPitch) return false;
  }
  for (int i = 1; i < count; ++i) {
    if (Bytes(context.In("x", i)) != bytes ||
        At(context.In("x", i)) != At(context.In("x")) + i * from_pitch ||
        At(context.Out("out", i)) != At(context.Out("out")) + i * to_pitch) {
      return false;
    }
  }
  return true;
}

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 32;  // keep a link busy, and few SMs
// More take longer than they may have to wait.
constexpr int64_t kMostBytesByThreads = 16 << 20;

template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    MoveUnits(int64_t count, const Unit* from, Unit* to) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += step) {
    to[i] = from[i];
  }
}

template <typename Unit>
void LaunchCopyByThreads(const Tensor& x, const Tensor& out,
                         cudaStream_t stream) {
  const int64_t count = Bytes(x) / static_cast<int64_t>(sizeof(Unit));
  const int64_t blocks = std::min(DivideUp(count, kThreads), kMostBlocks);
  MoveUnits<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      count, x.as<const Unit>(), out.as<Unit>());
  CheckLaunch("MoveUnits");
}

// Memory that the driver has refused to pin is out of their reach.
bool ThreadsReach(const void* data) {
  cudaPointerAttributes attributes;
  CheckCuda(cudaPointerGetAttributes(&attributes, data),
            "cudaPointerGetAttributes");
  return attributes.devicePointer == data;
}

bool IsForThreads(const KernelContext& context) {
  const Tensor& x = context.In("x");
  return context.op().stream == StreamKind::kCompute &&
         context.InCount("x") == 1 && Bytes(x) <= kMostBytesByThreads &&
         ThreadsReach(x.data) && ThreadsReach(context.Out("out").data);
}

void CopyByThreads(const KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor& out = context.Out("out");
  const cudaStream_t stream = StreamOf(context);
  if (Bytes(x) % 16 == 0 && AllAligned(x.as<uint4>(), out.as<uint4>())) {
    LaunchCopyByThreads<uint4>(x, out, stream);
  } else {
    DispatchUnit(SizeOf(x.dtype), [&](auto unit) {
      LaunchCopyByThreads<decltype(unit)>(x, out, stream);
    });
  }
}

void CopyKernel(KernelContext& context) {
  const cudaStream_t stream = StreamOf(context);
  const int count = context.InCount("x");
  if (Bytes(context.In("x")) > 0 &&
      context.Cached<bool>([&] { return IsForThreads(context); })) {
    return CopyByThreads(context);
  }
  const Tensor& x = context.In("x");
  const Tensor& out = context.Out("out");
  if (count > 1 && Bytes(x) > 0) {
    const int64_t from_pitch = At(context.In("x", 1)) - At(x);
    const int64_t to_pitch = At(context.Out("out", 1)) - At(out);
    if (IsGrid(context, count, from_pitch, to_pitch)) {
      CheckCuda(cudaMemcpy2DAsync(out.data, static_cast<size_t>(to_pitch),
                                  x.data, static_cast<size_t>(from_pitch),
                                  static_cast<size_t>(Bytes(x)),
                                  static_cast<size_t>(count), cudaMemcpyDefault,
                                  stream),
                "cudaMemcpy2DAsync");
      return;
    }
  }
  for (int i = 0; i < count; ++i) {
    const int64_t bytes = Bytes(context.In("x", i));
    if (bytes == 0) continue;
    CheckCuda(
        cudaMemcpyAsync(context.Out("out", i).data, context.In("x", i).data,
                        static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
        "cudaMemcpyAsync");
  }
}

}  // namespace

void RegisterCopyCuda(KernelRegistry& kernels) {
  kernels.Register("copy_d2h", DeviceKind::kCuda, CopyKernel);
  kernels.Register("copy_h2d", DeviceKind::kCuda, CopyKernel);
}

}  // namespace plo
