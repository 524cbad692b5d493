// copy_d2h, copy_h2d: asynchronous copies between device and pinned memory.
//
// On streams of their own they are the copy engines'. On the compute stream,
// where feeds and fetches are, threads copy: an engine takes the copies of all
// streams in turn, so that a few bytes would wait for the states on their way
// and for all that those wait for, and with them the next forward.
#include "operators/cuda_util.cuh"
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

// More take longer than they may have to wait.
constexpr int64_t kMostBytesByThreads = 16 << 20;

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
  CopyLoop dense;
  dense.rank = 1;
  dense.size[0] = x.numel;
  dense.stride[0] = {1, 1};
  LaunchStridedCopy(StreamOf(context), dense, SizeOf(x.dtype), x.data,
                    context.Out("out").data);
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
