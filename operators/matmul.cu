// matmul on cuBLASLt; see matmul.cc.
#include <algorithm>
#include <utility>
#include <vector>

#include "operators/cublas_gemm.h"
#include "operators/cuda_util.cuh"
#include "operators/matmul_geometry.h"

namespace plo {
namespace {

constexpr int kThreads = 256;

// out = [out +] bias: the product when k is 0.
template <typename T>
__global__ void EmptyProductKernel(const T* bias, T* out, int64_t numel,
                                   int64_t n, bool accumulate) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < numel;
       i += step) {
    float value = accumulate ? ToFloat(out[i]) : 0.0f;
    if (bias != nullptr) value += ToFloat(bias[i % n]);
    out[i] = FromFloat<T>(value);
  }
}

void RunEmptyProduct(const KernelContext& c, int64_t n) {
  const Tensor& out = c.Out("out");
  const Tensor* bias = c.TryIn("bias");
  const int64_t blocks = std::min<int64_t>(DivideUp(out.numel, kThreads), 4096);
  DispatchDeviceFloat(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    EmptyProductKernel<T>
        <<<static_cast<unsigned>(blocks), kThreads, 0, StreamOf(c)>>>(
            bias != nullptr ? bias->as<T>() : nullptr, out.as<T>(), out.numel,
            n, c.attrs().GetBool("accumulate"));
  });
  CheckLaunch("EmptyProductKernel");
}

// The step between neighbours in [begin, begin + count), or -1 if it varies.
int64_t StepOf(const std::vector<int64_t>& offsets, size_t begin,
               size_t count) {
  if (count == 1) return 0;
  const int64_t step = offsets[begin + 1] - offsets[begin];
  for (size_t i = begin + 1; i + 1 < begin + count; ++i) {
    if (offsets[i + 1] - offsets[i] != step) return -1;
  }
  return step;
}

// Whether all groups of `count` products have the same steps.
bool IsRegular(const std::vector<int64_t>& offsets, size_t count) {
  const int64_t step = StepOf(offsets, 0, count);
  for (size_t i = 0; i < offsets.size(); i += count) {
    if (step < 0 || StepOf(offsets, i, count) != step) return false;
  }
  return true;
}

// The batch as equal groups, each one call.
struct Groups {
  std::vector<int64_t> x_offsets{0}, y_offsets{0}, out_offsets{0};
  int64_t count = 1;  // products in a group
  int64_t x_step = 0, y_step = 0;

  explicit Groups(const MatmulGeometry& g) {
    if (!g.batched) return;
    const auto x = BatchOffsets(g.x_lead, g.lead, g.m * g.k);
    const auto y = BatchOffsets(g.y_lead, g.lead, g.k * g.n);
    // Trailing dimensions, as many as are regular in both operands.
    for (int axis = 1; axis <= g.lead.rank(); ++axis) {
      const int64_t wider = count * g.lead.dim(-axis);
      const size_t size = static_cast<size_t>(wider);
      if (!IsRegular(x, size) || !IsRegular(y, size)) break;
      count = wider;
    }
    const size_t size = static_cast<size_t>(count);
    x_step = StepOf(x, 0, size);
    y_step = StepOf(y, 0, size);
    x_offsets.clear();
    y_offsets.clear();
    out_offsets.clear();
    for (size_t i = 0; i < x.size(); i += size) {
      x_offsets.push_back(x[i]);
      y_offsets.push_back(y[i]);
      out_offsets.push_back(static_cast<int64_t>(i) * g.m * g.n);
    }
  }
};

// What all of the tensor's addresses at `offsets` are multiples of.
uint32_t AlignmentOf(const Tensor& tensor,
                     const std::vector<int64_t>& offsets) {
  uint32_t alignment = kGemmAlignment;
  for (int64_t offset : offsets) {
    alignment =
        std::min(alignment,
                 GemmAlignmentOf(ElementAt(tensor.dtype, tensor.data, offset)));
  }
  return alignment;
}

struct Launch {
  Groups groups;
  CublasGemm gemm;
};

Launch MakeLaunch(const KernelContext& c, const MatmulGeometry& g) {
  TouchWorkspaceEnd(c);  // once: the bytes stay as they are
  Groups groups(g);
  const Tensor& x = c.In("x");
  const Tensor* bias = c.TryIn("bias");
  CublasGemmSpec spec;
  spec.dtype = x.dtype;
  spec.out_dtype = x.dtype;
  spec.trans_a = c.attrs().GetBool("trans_x");
  spec.trans_b = c.attrs().GetBool("trans_y");
  spec.m = g.m;
  spec.n = g.n;
  spec.k = g.k;
  spec.stride_a = g.x_cols;
  spec.stride_b = g.y_cols;
  spec.stride_c = g.n;
  spec.batch = groups.count;
  spec.batch_stride_a = groups.x_step;
  spec.batch_stride_b = groups.y_step;
  spec.batch_stride_c = g.m * g.n;
  spec.accumulate = c.attrs().GetBool("accumulate");
  spec.bias = bias != nullptr ? bias->data : nullptr;
  spec.align_a = AlignmentOf(x, groups.x_offsets);
  spec.align_b = AlignmentOf(c.In("y"), groups.y_offsets);
  spec.align_c = AlignmentOf(c.Out("out"), groups.out_offsets);
  spec.workspace_bytes = c.workspace_bytes();
  return {std::move(groups), CublasGemm(spec)};
}

void MatmulKernel(KernelContext& c) {
  const Tensor& x = c.In("x");
  const Tensor& y = c.In("y");
  const Tensor& out = c.Out("out");
  if (out.numel == 0) return;
  const int64_t n = RowLength(out.shape);
  if (x.numel == 0 || y.numel == 0) return RunEmptyProduct(c, n);
  const Launch& launch = c.Cached<Launch>([&] {
    return MakeLaunch(c, MatmulGeometryOf(x.shape, y.shape, c.attrs()));
  });
  const Groups& groups = launch.groups;
  for (size_t i = 0; i < groups.x_offsets.size(); ++i) {
    launch.gemm.Run(ElementAt(x.dtype, x.data, groups.x_offsets[i]),
                    ElementAt(x.dtype, y.data, groups.y_offsets[i]),
                    ElementAt(x.dtype, out.data, groups.out_offsets[i]),
                    c.workspace(), c.native_stream());
  }
}

}  // namespace

void RegisterMatmulCuda(KernelRegistry& kernels) {
  kernels.Register("matmul", DeviceKind::kCuda, MatmulKernel);
}

}  // namespace plo
