// linear_cross_entropy and its gradient on CUDA; see linear_cross_entropy.cc
// and linear_cross_entropy_plan.h.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "operators/cublas_gemm.h"
#include "operators/cuda_util.cuh"
#include "operators/linear_cross_entropy_plan.h"
#include "operators/rows.h"

namespace plo {
namespace {

using Blocks = LinearCrossEntropyBlocks;

constexpr int kThreads = 256;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kLossThreads = 1024;

// 16 bytes of logits.
template <typename T>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / sizeof(T);
  T values[kCount];
};

// The sum of exp(x - shift) over what has been seen, shift being the largest x.
struct RunningSum {
  float max = -kInf;
  float sum = 0.0f;

  // Finite while all x are -inf.
  __device__ float shift() const { return max == -kInf ? 0.0f : max; }
  __device__ void Raise(float top) {
    if (top <= max) return;
    if (sum != 0.0f) sum *= expf(max - top);
    max = top;
  }
  __device__ void Merge(float other_max, float other_sum) {
    Raise(other_max);
    if (other_sum != 0.0f) sum += other_sum * expf(other_max - shift());
  }
};

// Over a block of kThreads, in a fixed order; thread 0 has the result.
__device__ inline RunningSum MergeBlock(RunningSum s) {
  __shared__ float maxes[kThreads / 32], sums[kThreads / 32];
  for (int k = 16; k > 0; k /= 2) {
    const float max = __shfl_down_sync(0xffffffffu, s.max, k);
    const float sum = __shfl_down_sync(0xffffffffu, s.sum, k);
    s.Merge(max, sum);
  }
  if (threadIdx.x % 32 == 0) {
    maxes[threadIdx.x / 32] = s.max;
    sums[threadIdx.x / 32] = s.sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kThreads / 32; ++w) s.Merge(maxes[w], sums[w]);
  }
  return s;
}

struct Rows {
  const int32_t* labels;
  int64_t ignore;
  int64_t classes, class_begin, columns, pitch;
  DeviceErrorSlot* error;
  int32_t op;

  // Thread 0 of a row: whether the label is out of range, which is reported.
  __device__ bool IsBad(int64_t row, int64_t label) const {
    if (label == ignore || (label >= 0 && label < classes)) return false;
    ReportIdOutOfRange(error, op, row, label, classes);
    return true;
  }
};

// Adds a block's classes to the running sums; the last block gives lse and the
// rows' losses. One block per row. `loss` holds the label's logit until then.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    LossKernel(const T* logits, float* row_max, float* row_sum, float* loss,
               float* lse, Rows rows, bool last) {
  const int64_t row = blockIdx.x;
  const T* x = logits + row * rows.pitch;
  RunningSum s;
  constexpr int kCount = Pack<T>::kCount;
  const int64_t packs = rows.columns / kCount;
  const Pack<T>* packed = reinterpret_cast<const Pack<T>*>(x);
  for (int64_t i = threadIdx.x; i < packs; i += kThreads) {
    const Pack<T> pack = packed[i];
    float v[kCount];
    float top = -kInf;
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      v[e] = ToFloat(pack.values[e]);
      top = fmaxf(top, v[e]);
    }
    s.Raise(top);
    const float shift = s.shift();
#pragma unroll
    for (int e = 0; e < kCount; ++e) s.sum += expf(v[e] - shift);
  }
  for (int64_t i = packs * kCount + threadIdx.x; i < rows.columns;
       i += kThreads) {
    const float v = ToFloat(x[i]);
    s.Raise(v);
    s.sum += expf(v - s.shift());
  }
  s = MergeBlock(s);
  if (threadIdx.x != 0) return;
  float label_logit = 0.0f;
  if (rows.class_begin > 0) {
    RunningSum before;
    before.max = row_max[row];
    before.sum = row_sum[row];
    before.Merge(s.max, s.sum);
    s = before;
    label_logit = loss[row];
  }
  const int64_t label = rows.labels[row];
  const int64_t column = label - rows.class_begin;
  if (column >= 0 && column < rows.columns) label_logit = ToFloat(x[column]);
  row_max[row] = s.max;
  row_sum[row] = s.sum;
  if (!last) {
    loss[row] = label_logit;
    return;
  }
  const float value = s.shift() + logf(s.sum);
  lse[row] = value;
  if (rows.IsBad(row, label)) {
    loss[row] = kNan;
  } else {
    loss[row] = label == rows.ignore ? 0.0f : value - label_logit;
  }
}

// One block; the order depends on the number of rows only.
__global__ void __launch_bounds__(kLossThreads)
    SumLossKernel(const float* loss, int64_t rows, float* out) {
  __shared__ double sums[kLossThreads];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < rows; i += kLossThreads) sum += loss[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int k = kLossThreads / 2; k > 0; k /= 2) {
    if (threadIdx.x < k) sums[threadIdx.x] += sums[threadIdx.x + k];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[0] = static_cast<float>(sums[0]);
}

// logits = (exp(logits - lse) - onehot) * dloss, zero in ignored rows. One
// block per row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    LogitGradKernel(T* logits, const float* lse, const float* dloss,
                    Rows rows) {
  const int64_t row = blockIdx.x;
  T* x = logits + row * rows.pitch;
  const int64_t label = rows.labels[row];
  const int64_t column = label - rows.class_begin;
  const bool ignored = label == rows.ignore;
  // A bad label spoils its row: the step is skipped.
  const bool bad = !ignored && (label < 0 || label >= rows.classes);
  if (bad && threadIdx.x == 0) rows.IsBad(row, label);
  const float row_lse = bad ? kNan : lse[row];
  const float seed = dloss[0];
  const auto grad = [&](float v, int64_t i) {
    if (ignored) return 0.0f;
    return (expf(v - row_lse) - (i == column ? 1.0f : 0.0f)) * seed;
  };
  constexpr int kCount = Pack<T>::kCount;
  const int64_t packs = rows.columns / kCount;
  Pack<T>* packed = reinterpret_cast<Pack<T>*>(x);
  for (int64_t i = threadIdx.x; i < packs; i += kThreads) {
    Pack<T> pack = packed[i];
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      pack.values[e] =
          FromFloat<T>(grad(ToFloat(pack.values[e]), i * kCount + e));
    }
    packed[i] = pack;
  }
  for (int64_t i = packs * kCount + threadIdx.x; i < rows.columns;
       i += kThreads) {
    x[i] = FromFloat<T>(grad(ToFloat(x[i]), i));
  }
}

template <typename T>
__global__ void RoundKernel(const float* sums, T* out, int64_t numel) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < numel;
       i += step) {
    out[i] = FromFloat<T>(sums[i]);
  }
}

// --- Launches ---

Blocks BlocksOf(const KernelContext& c) {
  const Tensor& x = c.In("x");
  const Tensor& weight = c.In("weight");
  return Blocks(x.dtype, RowCount(x.shape), weight.shape[0], weight.shape[1],
                c.attrs().GetInt("chunk_tokens"));
}

template <typename T = std::byte>
T* At(const KernelContext& c, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<std::byte*>(c.workspace()) + offset);
}

Rows RowsOf(const KernelContext& c, const Blocks& b, int64_t class_begin,
            int64_t columns) {
  return {c.In("labels").as<int32_t>(),
          c.attrs().GetInt("ignore_index"),
          b.classes,
          class_begin,
          columns,
          b.pitch,
          c.env().device_error,
          c.op().id};
}

unsigned GridOf(const Blocks& b) {
  PLO_ENFORCE(b.tokens < (int64_t{1} << 31), kUnimplemented,
              "linear_cross_entropy of ", b.tokens, " tokens");
  return static_cast<unsigned>(b.tokens);
}

// The products of one block of classes.
class Products {
 public:
  Products(const KernelContext& c, const Blocks& b)
      : c_(c), b_(b), x_(c.In("x")), weight_(c.In("weight")) {}

  // logits = x * weight^T
  CublasGemm Logits(int64_t columns) const {
    CublasGemmSpec s = Spec(b_.tokens, columns, b_.hidden);
    s.trans_b = true;
    s.stride_a = s.stride_b = b_.hidden;
    s.stride_c = b_.pitch;
    s.align_a = Alignment(x_);
    s.align_b = Alignment(weight_);
    return CublasGemm(s);
  }
  // dweight = dlogits^T * x
  CublasGemm WeightGrad(int64_t columns) const {
    CublasGemmSpec s = Spec(columns, b_.hidden, b_.tokens);
    s.trans_a = true;
    s.stride_a = b_.pitch;
    s.stride_b = s.stride_c = b_.hidden;
    s.accumulate = c_.attrs().GetBool("accumulate");
    s.align_b = Alignment(x_);
    s.align_c = Alignment(c_.Out("dweight"));
    return CublasGemm(s);
  }
  // dx = [dx +] dlogits * weight
  CublasGemm InputGrad(int64_t columns, bool first) const {
    CublasGemmSpec s = Spec(b_.tokens, b_.hidden, columns);
    s.stride_a = b_.pitch;
    s.stride_b = s.stride_c = b_.hidden;
    s.accumulate = !first;
    s.align_b = Alignment(weight_);
    if (b_.sums_dx()) {
      s.out_dtype = DType::kFp32;
    } else {
      s.align_c = Alignment(c_.Out("dx"));
    }
    return CublasGemm(s);
  }

 private:
  CublasGemmSpec Spec(int64_t m, int64_t n, int64_t k) const {
    CublasGemmSpec s;
    s.dtype = s.out_dtype = b_.dtype;
    s.m = m;
    s.n = n;
    s.k = k;
    s.workspace_bytes = b_.cublas_bytes();
    return s;
  }
  // Of a row of hidden elements anywhere in the tensor.
  uint32_t Alignment(const Tensor& tensor) const {
    return std::min(
        GemmAlignmentOf(tensor.data),
        GemmAlignmentOf(ElementAt(tensor.dtype, tensor.data, b_.hidden)));
  }

  const KernelContext& c_;
  const Blocks& b_;
  const Tensor& x_;
  const Tensor& weight_;
};

// Calls fn(class_begin, columns, block index).
template <typename Fn>
void ForEachBlock(const Blocks& b, const Fn& fn) {
  size_t index = 0;
  for (int64_t v = 0; v < b.classes; v += b.class_block) {
    fn(v, std::min(b.class_block, b.classes - v), index++);
  }
}

struct Launch {
  Blocks blocks;
  std::vector<CublasGemm> logits, dweight, dx;
};

Launch MakeLaunch(const KernelContext& c, bool forward) {
  const Tensor* dx = forward ? nullptr : c.TryOut("dx");
  const Tensor* dweight = forward ? nullptr : c.TryOut("dweight");
  Launch launch{BlocksOf(c), {}, {}, {}};
  Blocks& b = launch.blocks;
  if (forward) {
    b.LayOutForward();
  } else {
    b.LayOutBackward(dx != nullptr);
  }
  PLO_ENFORCE(b.total_bytes == c.workspace_bytes(), kInternal,
              "the workspace has ", c.workspace_bytes(), " bytes, ",
              b.total_bytes, " are used");
  const Products products(c, b);
  ForEachBlock(b, [&](int64_t begin, int64_t columns, size_t) {
    launch.logits.push_back(products.Logits(columns));
    if (dweight != nullptr) {
      launch.dweight.push_back(products.WeightGrad(columns));
    }
    if (dx != nullptr) {
      launch.dx.push_back(products.InputGrad(columns, begin == 0));
    }
  });
  return launch;
}

void* WeightRows(const Tensor& weight, const Blocks& b, int64_t begin) {
  return ElementAt(weight.dtype, weight.data, begin * b.hidden);
}

void LinearCrossEntropyKernel(KernelContext& c) {
  const cudaStream_t stream = StreamOf(c);
  float* loss_sum = c.Out("loss_sum").as<float>();
  if (c.In("labels").numel == 0) {
    CheckCuda(cudaMemsetAsync(loss_sum, 0, sizeof(float), stream),
              "cudaMemsetAsync");
    return;
  }
  const Launch& launch = c.Cached<Launch>([&] { return MakeLaunch(c, true); });
  const Blocks& b = launch.blocks;
  const Tensor& x = c.In("x");
  ForEachBlock(b, [&](int64_t begin, int64_t columns, size_t i) {
    launch.logits[i].Run(x.data, WeightRows(c.In("weight"), b, begin),
                         At(c, b.logits), c.workspace(), stream);
    DispatchDeviceFloat(b.dtype, [&](auto zero) {
      using T = decltype(zero);
      LossKernel<T><<<GridOf(b), kThreads, 0, stream>>>(
          At<T>(c, b.logits), At<float>(c, b.row_max), At<float>(c, b.row_sum),
          At<float>(c, b.row_loss), c.Out("lse").as<float>(),
          RowsOf(c, b, begin, columns), begin + columns == b.classes);
    });
    CheckLaunch("LossKernel");
  });
  SumLossKernel<<<1, kLossThreads, 0, stream>>>(At<float>(c, b.row_loss),
                                                b.tokens, loss_sum);
  CheckLaunch("SumLossKernel");
}

void RoundDx(const KernelContext& c, const Blocks& b, const Tensor& dx) {
  const int64_t blocks =
      std::min<int64_t>(DivideUp(dx.numel, kThreads), 132 * 16);
  DispatchDeviceFloat(b.dtype, [&](auto zero) {
    using T = decltype(zero);
    RoundKernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, StreamOf(c)>>>(
        At<float>(c, b.dx_sums), dx.as<T>(), dx.numel);
  });
  CheckLaunch("RoundKernel");
}

void LinearCrossEntropyGradKernel(KernelContext& c) {
  const cudaStream_t stream = StreamOf(c);
  const Tensor* dx = c.TryOut("dx");
  const Tensor* dweight = c.TryOut("dweight");
  if (c.In("labels").numel == 0) {
    if (dweight == nullptr || c.attrs().GetBool("accumulate")) return;
    const int64_t bytes = dweight->numel * SizeOf(dweight->dtype);
    CheckCuda(
        cudaMemsetAsync(dweight->data, 0, static_cast<size_t>(bytes), stream),
        "cudaMemsetAsync");
    return;
  }
  const Launch& launch = c.Cached<Launch>([&] { return MakeLaunch(c, false); });
  const Blocks& b = launch.blocks;
  const Tensor& x = c.In("x");
  std::byte* logits = At(c, b.logits);
  ForEachBlock(b, [&](int64_t begin, int64_t columns, size_t i) {
    const void* weight = WeightRows(c.In("weight"), b, begin);
    launch.logits[i].Run(x.data, weight, logits, c.workspace(), stream);
    DispatchDeviceFloat(b.dtype, [&](auto zero) {
      using T = decltype(zero);
      LogitGradKernel<T><<<GridOf(b), kThreads, 0, stream>>>(
          At<T>(c, b.logits), c.In("lse").as<float>(),
          c.In("dloss").as<float>(), RowsOf(c, b, begin, columns));
    });
    CheckLaunch("LogitGradKernel");
    if (dweight != nullptr) {
      launch.dweight[i].Run(logits, x.data, WeightRows(*dweight, b, begin),
                            c.workspace(), stream);
    }
    if (dx != nullptr) {
      void* sums = b.sums_dx() ? At<void>(c, b.dx_sums) : dx->data;
      launch.dx[i].Run(logits, weight, sums, c.workspace(), stream);
    }
  });
  if (dx != nullptr && b.sums_dx()) RoundDx(c, b, *dx);
}

}  // namespace

void RegisterLinearCrossEntropyCuda(KernelRegistry& kernels) {
  kernels.Register("linear_cross_entropy", DeviceKind::kCuda,
                   LinearCrossEntropyKernel);
  kernels.Register("linear_cross_entropy_grad", DeviceKind::kCuda,
                   LinearCrossEntropyGradKernel);
}

}  // namespace plo
