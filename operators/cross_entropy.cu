// cross_entropy and cross_entropy_grad; see operators/cross_entropy.cc.
#include "operators/packs.cuh"
#include "operators/row_reduce.cuh"
#include "operators/rows.h"

namespace plo {
namespace {

constexpr int kLseThreads = 512;

// sum(exp(x - shift)) of part of a row with shift = max(x), or 0 while all x
// are -inf.
struct PartialLse {
  float max;
  float sum;

  __device__ float shift() const {
    return isinf(max) && max < 0.0f ? 0.0f : max;
  }
};
struct PartialLseOp {
  __device__ PartialLse operator()(PartialLse a, PartialLse b) const {
    PartialLse result;
    result.max = fmaxf(a.max, b.max);
    const float shift = result.shift();
    result.sum = a.sum * expf(a.max - shift) + b.sum * expf(b.max - shift);
    return result;
  }
};

template <typename T>
__global__ void __launch_bounds__(kLseThreads)
    LseRows(int64_t rows, RowAccess access, const T* logits, float* lse) {
  constexpr int kCount = kPackOf<T>;
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const bool active = row < rows;
  const T* values = logits + (active ? row : rows - 1) * access.n;
  PartialLse part = {-INFINITY, 0.0f};
  const int64_t step = int64_t{blockDim.x} * kCount;
#pragma unroll 2
  for (int64_t column = int64_t{threadIdx.x} * kCount; column < access.n;
       column += step) {
    const Floats<kCount> x = LoadRow<kCount>(values, column, access, -INFINITY);
    float top = part.max;
#pragma unroll
    for (int i = 0; i < kCount; ++i) top = fmaxf(top, x.value[i]);
    const PartialLse old = part;
    part.max = top;
    const float shift = part.shift();
    part.sum = old.sum * expf(old.max - shift);
#pragma unroll
    for (int i = 0; i < kCount; ++i) part.sum += expf(x.value[i] - shift);
  }
  part = RowReduce(part, PartialLseOp{});
  if (active && threadIdx.x == 0) lse[row] = part.shift() + logf(part.sum);
}

// lse[row] = log(sum(exp(logits[row]))) of [rows, n].
template <typename T>
void LaunchLse(cudaStream_t stream, int64_t rows, int64_t n, const T* logits,
               float* lse) {
  if (rows == 0) return;
  const RowLayout layout = MakeRowLayout(n, kPackOf<T>, kLseThreads, 1);
  LseRows<<<static_cast<unsigned>(DivideUp(rows, layout.rows)), BlockOf(layout),
            0, stream>>>(rows, MakeRowAccess<T>(n, logits), logits, lse);
  CheckLaunch("LseRows");
}

// (softmax - onehot) * dloss; NaN for a label out of range.
template <typename T>
__global__ void __launch_bounds__(kLseThreads)
    CrossEntropyGradRows(int64_t rows, RowAccess access, int64_t ignore_index,
                         int32_t op, DeviceErrorSlot* error, const T* logits,
                         const int32_t* labels, const float* lse,
                         const float* dloss, T* dlogits) {
  constexpr int kCount = kPackOf<T>;
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  const int64_t n = access.n;
  const int64_t label = labels[row];
  const bool ignored = label == ignore_index;
  const bool valid = label >= 0 && label < n;
  if (!ignored && !valid && threadIdx.x == 0) {
    ReportIdOutOfRange(error, op, row, label, n);
  }
  const float factor = ignored || valid ? *dloss : NAN;
  const float shift = lse[row];
  const T* from = logits + row * n;
  T* to = dlogits + row * n;
  const int64_t step = int64_t{blockDim.x} * kCount;
#pragma unroll 2
  for (int64_t column = int64_t{threadIdx.x} * kCount; column < n;
       column += step) {
    Floats<kCount> x = {};
    if (!ignored) {
      x = LoadRow<kCount>(from, column, access);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float p = expf(x.value[i] - shift);
        x.value[i] = (column + i == label ? p - 1.0f : p) * factor;
      }
    }
    StoreRow(x, to, column, access);
  }
}

constexpr int kSumThreads = 1024;

// The sum over rows of lse - logit[label], in double; NaN for a label out of
// range.
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    SumLosses(int64_t rows, int64_t n, int64_t ignore_index, int32_t op,
              DeviceErrorSlot* error, const T* logits, const int32_t* labels,
              const float* lse, float* loss_sum) {
  double loss = 0;
#pragma unroll 4
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads) {
    const int64_t label = labels[row];
    if (label == ignore_index) continue;
    if (label < 0 || label >= n) {
      ReportIdOutOfRange(error, op, row, label, n);
      loss = NAN;
      continue;
    }
    loss += lse[row] - ToFloat(logits[row * n + label]);
  }
  loss = RowSum(loss);
  if (threadIdx.x == 0) *loss_sum = static_cast<float>(loss);
}

void CrossEntropyKernel(KernelContext& context) {
  const Tensor& logits = context.In("logits");
  const int64_t n = RowLength(logits.shape), rows = RowCount(logits.shape);
  const cudaStream_t stream = StreamOf(context);
  DispatchDeviceFloat(logits.dtype, [&](auto type) {
    const auto* values = logits.as<const decltype(type)>();
    float* lse = context.Out("lse").as<float>();
    LaunchLse(stream, rows, n, values, lse);
    SumLosses<<<1, kSumThreads, 0, stream>>>(
        rows, n, context.attrs().GetInt("ignore_index"), context.op().id,
        context.env().device_error, values,
        context.In("labels").as<const int32_t>(), lse,
        context.Out("loss_sum").as<float>());
    CheckLaunch("SumLosses");
  });
}

void CrossEntropyGradKernel(KernelContext& context) {
  const Tensor& logits = context.In("logits");
  if (logits.numel == 0) return;
  const int64_t n = RowLength(logits.shape), rows = RowCount(logits.shape);
  DispatchDeviceFloat(logits.dtype, [&](auto type) {
    using T = decltype(type);
    const T* values = logits.as<const T>();
    T* dlogits = context.Out("dlogits").as<T>();
    const RowLayout layout = MakeRowLayout(n, kPackOf<T>, kLseThreads, 1);
    CrossEntropyGradRows<<<static_cast<unsigned>(DivideUp(rows, layout.rows)),
                           BlockOf(layout), 0, StreamOf(context)>>>(
        rows, MakeRowAccess<T>(n, values, dlogits),
        context.attrs().GetInt("ignore_index"), context.op().id,
        context.env().device_error, values,
        context.In("labels").as<const int32_t>(),
        context.In("lse").as<const float>(),
        context.In("dloss").as<const float>(), dlogits);
    CheckLaunch("CrossEntropyGradRows");
  });
}

}  // namespace

void RegisterCrossEntropyCuda(KernelRegistry& kernels) {
  kernels.Register("cross_entropy", DeviceKind::kCuda, CrossEntropyKernel);
  kernels.Register("cross_entropy_grad", DeviceKind::kCuda,
                   CrossEntropyGradKernel);
}

}  // namespace plo
