// reduce_sum, reduce_mean, reduce_max, reduce_max_grad, reduce_to_shape and
// broadcast_to; see operators/reduce.cc. Sums are taken in double, in parts
// where the outputs are few; see ReductionSplit.
#include "operators/packs.cuh"
#include "operators/reduction_layout.h"
#include "operators/row_reduce.cuh"
#include "operators/strided_copy.cuh"

namespace plo {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct Sum {
  static constexpr float kIdentity = 0.0f;
  __device__ double operator()(double a, double b) const { return a + b; }
};
struct Max {
  static constexpr float kIdentity = -INFINITY;
  // NaN if either is.
  __device__ double operator()(double a, double b) const {
    return b > a || b != b ? b : a;
  }
};

template <typename T>
struct Operands {
  ReductionLayout layout;
  ReductionSplit split;
  int64_t outputs;
  int64_t outer, repeats;
  bool vector;  // every run is of whole, aligned packs
  double factor;
  const T* x;
  T* out;
  double* partials;  // null where there is one part

  __device__ int64_t ReducedOffset(int64_t r) const {
    if (layout.reduced.rank == 1) return r * layout.reduced.stride[0][0];
    return layout.reduced.Offsets(r, layout.reduced.rank)[0];
  }
  __device__ const T* Kept(int64_t o) const {
    return x + layout.kept.Offsets(o, layout.kept.rank)[0];
  }
  __device__ void Store(int64_t index, double value) const {
    if (partials != nullptr) {
      partials[blockIdx.y * outputs + index] = value;
    } else {
      out[index] = FromFloat<T>(static_cast<float>(value * factor));
    }
  }
};

// The run is kept: a block takes a strip of it, its warps share out the
// repeats.
template <typename Op, typename T>
__global__ void __launch_bounds__(kThreads)
    ReduceColumns(Operands<T> o, int64_t strips) {
  constexpr int kCount = kPackOf<T>;
  __shared__ double parts[kWarps][32 * kCount];
  const Op op;
  const int64_t kept = blockIdx.x / strips;
  const int64_t first = blockIdx.x % strips * 32 * kCount;
  const int64_t column = first + threadIdx.x * kCount;
  const int64_t run = o.layout.run;
  const T* x = o.Kept(kept);
  double values[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = Op::kIdentity;
  const int64_t begin = blockIdx.y * o.split.part;
  const int64_t end = min(o.repeats, begin + o.split.part);
  if (column < run) {
#pragma unroll 4
    for (int64_t r = begin + threadIdx.y; r < end; r += kWarps) {
      const Floats<kCount> row = LoadRow<kCount>(x + o.ReducedOffset(r), column,
                                                 RowAccess{run, o.vector});
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        values[i] = op(values[i], row.value[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    parts[threadIdx.y][threadIdx.x * kCount + i] = values[i];
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.y * 32 + threadIdx.x);
  for (int i = thread; i < 32 * kCount && first + i < run; i += kThreads) {
    double total = parts[0][i];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) {
      total = op(total, parts[warp][i]);
    }
    o.Store(kept * run + first + i, total);
  }
}

// The run is reduced: the threads of a row of the block share out its packs.
template <typename Op, typename T>
__global__ void __launch_bounds__(kThreads) ReduceRuns(Operands<T> o) {
  constexpr int kCount = kPackOf<T>;
  const Op op;
  const int64_t output = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const bool active = output < o.outer;
  const T* x = o.Kept(active ? output : o.outer - 1);
  const int64_t run = o.layout.run;
  const int64_t packs = (run + kCount - 1) / kCount;
  const int64_t begin = blockIdx.y * o.split.part;
  const int64_t end = min(o.repeats * packs, begin + o.split.part);
  double value = Op::kIdentity;
#pragma unroll 2
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const int64_t r = o.repeats == 1 ? 0 : i / packs;
    const Floats<kCount> pack =
        LoadRow<kCount>(x + o.ReducedOffset(r), (i - r * packs) * kCount,
                        RowAccess{run, o.vector}, Op::kIdentity);
#pragma unroll
    for (int k = 0; k < kCount; ++k) value = op(value, pack.value[k]);
  }
  value = RowReduce(value, op);
  if (active && threadIdx.x == 0) o.Store(output, value);
}

template <typename Op, typename T>
__global__ void __launch_bounds__(kThreads)
    CombineParts(int64_t splits, int64_t outputs, double factor,
                 const double* partials, T* out) {
  __shared__ double parts[kWarps][32];
  const Op op;
  const int64_t output = int64_t{blockIdx.x} * 32 + threadIdx.x;
  double value = Op::kIdentity;
  if (output < outputs) {
#pragma unroll 4
    for (int64_t i = threadIdx.y; i < splits; i += kWarps) {
      value = op(value, partials[i * outputs + output]);
    }
  }
  parts[threadIdx.y][threadIdx.x] = value;
  __syncthreads();
  if (threadIdx.y > 0 || output >= outputs) return;
  for (int warp = 1; warp < kWarps; ++warp) {
    value = op(value, parts[warp][threadIdx.x]);
  }
  out[output] = FromFloat<T>(static_cast<float>(value * factor));
}

template <typename T>
bool RunsOfPacks(const ReductionLayout& layout, const T* x) {
  constexpr int kCount = kPackOf<T>;
  bool packs = layout.run % kCount == 0 && AllAligned(x);
  for (const StridedLoop<1>* loop : {&layout.kept, &layout.reduced}) {
    for (int i = 0; i < loop->rank; ++i) {
      packs = packs && loop->stride[i][0] % kCount == 0;
    }
  }
  return packs;
}

template <typename Op>
void Reduce(KernelContext& context, DimMask mask, double factor) {
  const Tensor& x = context.In("x");
  const Tensor& out = context.Out("out");
  if (out.numel == 0) return;
  const cudaStream_t stream = StreamOf(context);
  DispatchDeviceFloat(x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kCount = kPackOf<T>;
    Operands<T> o;
    o.layout = MakeReductionLayout(x.shape, mask);
    o.split = MakeReductionSplit(o.layout, x.dtype);
    o.outputs = out.numel;
    o.outer = o.layout.outer();
    o.repeats = x.numel == 0 ? 0 : o.layout.repeats();
    o.factor = factor;
    o.x = x.as<const T>();
    o.vector = RunsOfPacks(o.layout, o.x);
    o.out = out.as<T>();
    o.partials = o.split.splits == 1
                     ? nullptr
                     : static_cast<double*>(context.workspace());
    const auto splits = static_cast<unsigned>(o.split.splits);
    if (o.layout.run_kept) {
      const int64_t strips = DivideUp(o.layout.run, 32 * kCount);
      const dim3 grid(static_cast<unsigned>(o.outer * strips), splits);
      ReduceColumns<Op><<<grid, dim3(32, kWarps), 0, stream>>>(o, strips);
    } else {
      const RowLayout rows =
          MakeRowLayout(o.split.part * kCount, kCount, kThreads, 1);
      const dim3 grid(static_cast<unsigned>(DivideUp(o.outer, rows.rows)),
                      splits);
      ReduceRuns<Op><<<grid, BlockOf(rows), 0, stream>>>(o);
    }
    CheckLaunch("Reduce");
    if (o.partials == nullptr) return;
    CombineParts<Op>
        <<<static_cast<unsigned>(DivideUp(out.numel, 32)), dim3(32, kWarps), 0,
           stream>>>(o.split.splits, out.numel, factor, o.partials, o.out);
    CheckLaunch("CombineParts");
  });
}

DimMask AxesOf(const KernelContext& context, const Tensor& x) {
  return MaskOf(context.attrs().GetInts("axes"), x.shape.rank());
}

void SumKernel(KernelContext& context) {
  Reduce<Sum>(context, AxesOf(context, context.In("x")), 1.0);
}

void MeanKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor& out = context.Out("out");
  const double count = out.numel == 0 ? 1.0
                                      : static_cast<double>(x.numel) /
                                            static_cast<double>(out.numel);
  Reduce<Sum>(context, AxesOf(context, x), 1.0 / count);
}

void MaxKernel(KernelContext& context) {
  Reduce<Max>(context, AxesOf(context, context.In("x")), 1.0);
}

void ReduceToShapeKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor& out = context.Out("out");
  if (x.shape != out.shape) {
    return Reduce<Sum>(context, RepeatedDims(x.shape, out.shape), 1.0);
  }
  if (x.numel == 0 || x.data == out.data) return;
  CheckCuda(cudaMemcpyAsync(out.data, x.data,
                            static_cast<size_t>(x.numel * SizeOf(x.dtype)),
                            cudaMemcpyDeviceToDevice, StreamOf(context)),
            "cudaMemcpyAsync");
}

// Equal shares for ties. One thread an output where the run is kept, so that
// neighbours read neighbours, else one warp.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    MaxGrad(StridedLoop<1> kept, StridedLoop<1> reduced, int64_t outputs,
            int64_t repeats, const T* x, const T* out, const T* dout, T* dx) {
  const int64_t output = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (output >= outputs) return;
  const int64_t base = kept.Offsets(output, kept.rank)[0];
  const float best = ToFloat(out[output]);
  int ties = 0;
  for (int64_t r = threadIdx.x; r < repeats; r += blockDim.x) {
    ties += ToFloat(x[base + reduced.Offsets(r, reduced.rank)[0]]) == best;
  }
  if (blockDim.x == 32) {
    ties = static_cast<int>(
        __reduce_add_sync(0xFFFFFFFFu, static_cast<unsigned>(ties)));
  }
  const float share = ToFloat(dout[output]) / static_cast<float>(ties);
  for (int64_t r = threadIdx.x; r < repeats; r += blockDim.x) {
    const int64_t at = base + reduced.Offsets(r, reduced.rank)[0];
    dx[at] = FromFloat<T>(ToFloat(x[at]) == best ? share : 0.0f);
  }
}

void MaxGradKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor& out = context.In("out");
  if (x.numel == 0) return;
  const int rank = x.shape.rank();
  const DimMask mask = AxesOf(context, x);
  const auto strides = BroadcastStrides(x.shape, rank);
  StridedLoop<1> kept, reduced;
  bool run_kept = true;
  for (int i = 0; i < rank; ++i) {
    (IsReduced(mask, i) ? reduced : kept).Add(x.shape[i], {strides[i]});
    if (x.shape[i] > 1) run_kept = !IsReduced(mask, i);
  }
  kept.Finish();
  reduced.Finish();
  const dim3 block = run_kept ? dim3(1, kThreads) : dim3(32, kWarps);
  DispatchDeviceFloat(x.dtype, [&](auto type) {
    using T = decltype(type);
    MaxGrad<<<static_cast<unsigned>(DivideUp(out.numel, block.y)), block, 0,
              StreamOf(context)>>>(
        kept, reduced, out.numel, reduced.Count(reduced.rank), x.as<const T>(),
        out.as<const T>(), context.In("dout").as<const T>(),
        context.Out("dx").as<T>());
    CheckLaunch("MaxGrad");
  });
}

void BroadcastKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor& out = context.Out("out");
  if (out.numel == 0) return;
  const int rank = out.shape.rank();
  const auto from = BroadcastStrides(x.shape, rank);
  const auto to = BroadcastStrides(out.shape, rank);
  CopyLoop loop;
  for (int i = 0; i < rank; ++i) loop.Add(out.shape[i], {to[i], from[i]});
  loop.Finish();
  LaunchStridedCopy(StreamOf(context), loop, SizeOf(x.dtype), x.data, out.data);
}

}  // namespace

void RegisterReduceCuda(KernelRegistry& kernels) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  kernels.Register("reduce_sum", kCuda, SumKernel);
  kernels.Register("reduce_mean", kCuda, MeanKernel);
  kernels.Register("reduce_max", kCuda, MaxKernel);
  kernels.Register("reduce_max_grad", kCuda, MaxGradKernel);
  kernels.Register("reduce_to_shape", kCuda, ReduceToShapeKernel);
  kernels.Register("broadcast_to", kCuda, BroadcastKernel);
}

}  // namespace plo
