// reshape, transpose, slice, concat, split: bytes of any dtype are moved.
#include "operators/strided_copy.cuh"

namespace plo {
namespace {

int AxisOf(const KernelContext& context, const Shape& shape) {
  const int64_t axis = context.attrs().GetInt("axis");
  return static_cast<int>(axis < 0 ? axis + shape.rank() : axis);
}

// A view needs no work; the copy is for an output with bytes of its own.
void ReshapeKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor& out = context.Out("out");
  const int64_t bytes = x.numel * SizeOf(x.dtype);
  if (bytes == 0 || x.data == out.data) return;
  CheckCuda(cudaMemcpyAsync(out.data, x.data, static_cast<size_t>(bytes),
                            cudaMemcpyDeviceToDevice, StreamOf(context)),
            "cudaMemcpyAsync");
}

// --- transpose ---

constexpr int kTile = 32;
constexpr int kTileRows = 8;

// A matrix in each of the two tensors: dense along `cols` in the target, along
// `rows` in the source; the other dimensions are in `outer`.
struct TileShape {
  CopyLoop outer;
  int64_t rows, cols;
  int64_t to_stride;    // of a row
  int64_t from_stride;  // of a column
  int64_t row_tiles, col_tiles;
};

// Through shared memory, so that both sides are accessed along their rows.
template <typename Unit>
__global__ void __launch_bounds__(kTile* kTileRows)
    TransposeTiles(TileShape s, const Unit* from, Unit* to) {
  __shared__ Unit tile[kTile][kTile + 1];
  int64_t index = blockIdx.x;
  const int64_t col0 = index % s.col_tiles * kTile;
  index /= s.col_tiles;
  const int64_t row0 = index % s.row_tiles * kTile;
  const auto offsets = s.outer.Offsets(index / s.row_tiles, s.outer.rank);
  from += offsets[1];
  to += offsets[0];
  for (int i = static_cast<int>(threadIdx.y); i < kTile; i += kTileRows) {
    const int64_t row = row0 + threadIdx.x, col = col0 + i;
    if (row < s.rows && col < s.cols) {
      tile[i][threadIdx.x] = from[col * s.from_stride + row];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y); i < kTile; i += kTileRows) {
    const int64_t row = row0 + i, col = col0 + threadIdx.x;
    if (row < s.rows && col < s.cols) {
      to[row * s.to_stride + col] = tile[threadIdx.x][i];
    }
  }
}

void TransposeKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor& out = context.Out("out");
  if (x.numel == 0) return;
  const std::vector<int64_t>& perm = context.attrs().GetInts("perm");
  const int rank = x.shape.rank();
  const auto from = BroadcastStrides(x.shape, rank);
  const auto to = BroadcastStrides(out.shape, rank);
  CopyLoop loop;
  for (int i = 0; i < rank; ++i) {
    loop.Add(out.shape[i], {to[i], from[static_cast<size_t>(perm[i])]});
  }
  loop.Finish();
  const cudaStream_t stream = StreamOf(context);
  const int64_t bytes = SizeOf(x.dtype);
  const int last = loop.rank - 1;
  int dense = last;  // the dimension along which the source is dense
  while (dense > 0 && loop.stride[dense][1] != 1) --dense;
  if (dense == last || loop.stride[dense][1] != 1) {
    return LaunchStridedCopy(stream, loop, bytes, x.data, out.data);
  }
  TileShape s;
  for (int i = 0; i < last; ++i) {
    if (i != dense) s.outer.Add(loop.size[i], loop.stride[i]);
  }
  s.outer.Finish();
  s.rows = loop.size[dense];
  s.cols = loop.size[last];
  s.to_stride = loop.stride[dense][0];
  s.from_stride = loop.stride[last][1];
  s.row_tiles = DivideUp(s.rows, kTile);
  s.col_tiles = DivideUp(s.cols, kTile);
  const auto blocks = static_cast<unsigned>(s.outer.Count(s.outer.rank) *
                                            s.row_tiles * s.col_tiles);
  DispatchUnit(bytes, [&](auto unit) {
    using Unit = decltype(unit);
    TransposeTiles<<<blocks, dim3(kTile, kTileRows), 0, stream>>>(
        s, x.as<const Unit>(), out.as<Unit>());
    CheckLaunch("TransposeTiles");
  });
}

// --- slice, concat, split ---

// A tensor as [outer, dim(axis), inner elements].
struct AxisLayout {
  int64_t outer = 1, dim = 1, inner = 1;
};

AxisLayout LayoutOf(const Tensor& t, int axis) {
  AxisLayout layout;
  for (int i = 0; i < axis; ++i) layout.outer *= t.shape[i];
  layout.dim = t.shape[axis];
  for (int i = axis + 1; i < t.shape.rank(); ++i) layout.inner *= t.shape[i];
  return layout;
}

// Copies elements [from, from + n) along `axis` of x to [to, to + n) of out.
void CopyAlong(cudaStream_t stream, const Tensor& x, int64_t from,
               const Tensor& out, int64_t to, int64_t n, int axis) {
  const AxisLayout source = LayoutOf(x, axis);
  const AxisLayout target = LayoutOf(out, axis);
  if (source.outer * n * source.inner == 0) return;
  CopyLoop loop;
  loop.Add(source.outer,
           {target.dim * target.inner, source.dim * source.inner});
  loop.Add(n * source.inner, {1, 1});
  loop.Finish();
  const int64_t bytes = SizeOf(x.dtype);
  LaunchStridedCopy(stream, loop, bytes,
                    x.as<const char>() + from * source.inner * bytes,
                    out.as<char>() + to * target.inner * bytes);
}

void SliceKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor& out = context.Out("out");
  const int axis = AxisOf(context, x.shape);
  CopyAlong(StreamOf(context), x, context.attrs().GetInt("begin"), out, 0,
            out.shape[axis], axis);
}

// Zeroes [begin, end) along `axis`.
void ZeroAlong(cudaStream_t stream, const Tensor& out, int64_t begin,
               int64_t end, int axis) {
  const AxisLayout layout = LayoutOf(out, axis);
  const int64_t unit = layout.inner * SizeOf(out.dtype);
  const auto bytes = static_cast<size_t>((end - begin) * unit);
  if (bytes == 0 || layout.outer == 0) return;
  char* to = out.as<char>() + begin * unit;
  if (layout.outer == 1) {
    CheckCuda(cudaMemsetAsync(to, 0, bytes, stream), "cudaMemsetAsync");
    return;
  }
  CheckCuda(cudaMemset2DAsync(to, static_cast<size_t>(layout.dim * unit), 0,
                              bytes, static_cast<size_t>(layout.outer), stream),
            "cudaMemset2DAsync");
}

void SliceGradKernel(KernelContext& context) {
  const Tensor& dout = context.In("dout");
  const Tensor& dx = context.Out("dx");
  const cudaStream_t stream = StreamOf(context);
  const int axis = AxisOf(context, dout.shape);
  const int64_t begin = context.attrs().GetInt("begin");
  const int64_t end = begin + dout.shape[axis];
  ZeroAlong(stream, dx, 0, begin, axis);
  ZeroAlong(stream, dx, end, dx.shape[axis], axis);
  CopyAlong(stream, dout, 0, dx, begin, dout.shape[axis], axis);
}

void ConcatKernel(KernelContext& context) {
  const Tensor& out = context.Out("out");
  const int axis = AxisOf(context, out.shape);
  int64_t at = 0;
  for (int i = 0; i < context.InCount("x"); ++i) {
    const Tensor& x = context.In("x", i);
    CopyAlong(StreamOf(context), x, 0, out, at, x.shape[axis], axis);
    at += x.shape[axis];
  }
}

void SplitKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  const int axis = AxisOf(context, x.shape);
  int64_t at = 0;
  for (int i = 0; i < context.OutCount("out"); ++i) {
    const Tensor& out = context.Out("out", i);
    CopyAlong(StreamOf(context), x, at, out, 0, out.shape[axis], axis);
    at += out.shape[axis];
  }
}

}  // namespace

void RegisterShapeOpsCuda(KernelRegistry& kernels) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  kernels.Register("reshape", kCuda, ReshapeKernel);
  kernels.Register("reshape_copy", kCuda, ReshapeKernel);
  kernels.Register("transpose", kCuda, TransposeKernel);
  kernels.Register("slice", kCuda, SliceKernel);
  kernels.Register("slice_grad", kCuda, SliceGradKernel);
  kernels.Register("concat", kCuda, ConcatKernel);
  kernels.Register("split", kCuda, SplitKernel);
}

}  // namespace plo
