#include "operators/onednn_utils.h"

#include <dnnl.h>

#include <algorithm>

#include "framework/ir/error.h"
#include "operators/kernel_util.h"
#include "operators/vector_ops.h"

namespace plo {
namespace {

// Blocks of the 16-bit product: (1024 * 1024 + 2 * 1024 * 512) * 4 bytes are
// 8 MiB, and each converted element serves 1024 multiply-adds.
constexpr int64_t kMaxRows = 1024;
constexpr int64_t kMaxDepth = 512;
// oneDNN reads a transposed `a` and a plain `b` across their rows. Row strides
// of a multiple of 2 KiB then fall into few cache sets and cost up to half the
// speed, so blocks are padded, and such fp32 matrices copied, when enough rows
// or columns of the result share the copy.
constexpr int64_t kPad = 16;
constexpr int64_t kBadStride = 512;
constexpr int64_t kMinSharing = 128;

// The size of equal blocks of at most `limit`, for n > limit in steps of 16.
int64_t BlockSize(int64_t n, int64_t limit) {
  if (n <= limit) return n;
  return std::min(limit, RoundUp(CeilDiv(n, CeilDiv(n, limit)), 16));
}

struct Blocks {
  int64_t m, n, k;
  int64_t a_stride, b_stride;  // of converted or copied blocks
  bool copy_a, copy_b;         // else `a` or `b` is read where it is
  int64_t a_floats, b_floats, c_floats;

  explicit Blocks(const GemmCall& g)
      : m(BlockSize(g.m, kMaxRows)),
        n(BlockSize(g.n, kMaxRows)),
        k(BlockSize(g.k, kMaxDepth)),
        a_stride(g.trans_a ? m + kPad : k),
        b_stride(g.trans_b ? k : n + kPad) {
    const bool narrow = g.dtype != DType::kFp32;
    const bool deep = g.k >= kMaxDepth;
    copy_a = narrow || (deep && g.trans_a && g.n >= kMinSharing &&
                        g.stride_a % kBadStride == 0);
    copy_b = narrow || (deep && !g.trans_b && g.m >= kMinSharing &&
                        g.stride_b % kBadStride == 0);
    a_floats = copy_a ? a_stride * (g.trans_a ? k : m) : 0;
    b_floats = copy_b ? b_stride * (g.trans_b ? n : k) : 0;
    c_floats = narrow ? m * n : 0;
  }

  // The padding after the last row is never written.
  int64_t WorkspaceFloats(const GemmCall& g) const {
    const int64_t floats = a_floats + b_floats + c_floats;
    if (c_floats > 0 || floats == 0) return floats;
    const bool padded = copy_b ? !g.trans_b : g.trans_a;
    return padded ? floats - kPad : floats;
  }
};

void SetRows(const float* row, float* c, int64_t stride, int64_t m, int64_t n,
             bool add) {
  ParallelFor(m, m * n, [&](int64_t i) {
    if (add) {
      Vec().add(row, c + i * stride, n);
    } else {
      std::copy(row, row + n, c + i * stride);
    }
  });
}

// A block of an operand as fp32: where it is, or the last one copied.
class OperandBlock {
 public:
  OperandBlock(DType dtype, const void* src, int64_t src_stride, float* copy,
               int64_t copy_stride)
      : dtype_(dtype),
        src_(src),
        src_stride_(src_stride),
        copy_(copy),
        copy_stride_(copy_stride) {}

  const float* Load(int64_t row, int64_t col, int64_t rows, int64_t cols) {
    const void* at = ElementAt(dtype_, src_, row * src_stride_ + col);
    if (copy_ == nullptr) return static_cast<const float*>(at);
    if (row != row_ || col != col_) {
      ConvertMatrixToFloat(dtype_, at, src_stride_, copy_, copy_stride_, rows,
                           cols);
      row_ = row;
      col_ = col;
    }
    return copy_;
  }
  int64_t stride() const {
    return copy_ == nullptr ? src_stride_ : copy_stride_;
  }

 private:
  DType dtype_;
  const void* src_;
  int64_t src_stride_;
  float* copy_;
  int64_t copy_stride_;
  int64_t row_ = -1, col_ = -1;
};

// Sets or adds the bias. Returns the factor of `c` in the first product.
float BeginBlock(const GemmCall& g, int64_t j, int64_t m, int64_t n, float* c) {
  if (g.bias != nullptr) {
    SetRows(static_cast<const float*>(g.bias) + j, c, g.stride_c, m, n,
            g.accumulate);
  }
  return g.accumulate || g.bias != nullptr ? 1.0f : 0.0f;
}

// Adds the bias and what the target held to a block of fp32 sums, and rounds
// them to it: one pass, while a row is in the first cache.
void StoreBlock(const GemmCall& g, float* c, void* target, int64_t j, int64_t m,
                int64_t n) {
  float bias[kMaxRows];
  if (g.bias != nullptr) FloatsAt(g.dtype, g.bias, j, n, bias);
  ParallelFor(m, m * n, [&](int64_t i) {
    float* row = c + i * n;
    if (g.bias != nullptr) Vec().add(bias, row, n);
    if (g.accumulate) {
      float held[kMaxRows];
      Vec().add(FloatsAt(g.dtype, target, i * g.stride_c, n, held), row, n);
    }
    StoreFloats(g.dtype, row, target, i * g.stride_c, n);
  });
}

}  // namespace

void Sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
           float alpha, const float* a, int64_t stride_a, const float* b,
           int64_t stride_b, float beta, float* c, int64_t stride_c) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (int64_t i = 0; i < m && beta != 1.0f; ++i) {
      float* row = c + i * stride_c;
      for (int64_t j = 0; j < n; ++j) row[j] = beta == 0 ? 0 : row[j] * beta;
    }
    return;
  }
  // A matrix of one row or column may come with any stride.
  stride_a = std::max(stride_a, trans_a ? m : k);
  stride_b = std::max(stride_b, trans_b ? k : n);
  stride_c = std::max(stride_c, n);
  const dnnl_status_t status =
      dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, alpha, a,
                 stride_a, b, stride_b, beta, c, stride_c);
  PLO_ENFORCE(status == dnnl_success, kInternal, "dnnl_sgemm of m = ", m,
              ", n = ", n, ", k = ", k, " failed with status ",
              static_cast<int>(status));
}

int64_t GemmWorkspaceBytes(const GemmCall& g) {
  if (g.m == 0 || g.n == 0) return 0;
  return Blocks(g).WorkspaceFloats(g) * static_cast<int64_t>(sizeof(float));
}

void RunGemm(const GemmCall& g, void* workspace) {
  if (g.m == 0 || g.n == 0) return;
  Blocks block(g);
  const bool narrow = g.dtype != DType::kFp32;
  float* base = static_cast<float*>(workspace);
  const bool copy_a = block.copy_a && base != nullptr;
  const bool copy_b = block.copy_b && base != nullptr;
  if (!narrow) {  // whole where nothing is copied
    if (!copy_b) block.n = g.bias == nullptr ? g.n : block.n;
    if (!copy_a) block.m = g.m;
    if (!copy_a && !copy_b) block.k = g.k;
  }
  OperandBlock a(g.dtype, g.a, g.stride_a, copy_a ? base : nullptr,
                 block.a_stride);
  OperandBlock b(g.dtype, g.b, g.stride_b,
                 copy_b ? base + block.a_floats : nullptr, block.b_stride);
  for (int64_t j = 0; j < g.n; j += block.n) {
    const int64_t n = std::min(block.n, g.n - j);
    for (int64_t i = 0; i < g.m; i += block.m) {
      const int64_t m = std::min(block.m, g.m - i);
      void* target = ElementAt(g.dtype, g.c, i * g.stride_c + j);
      float* c = narrow ? base + block.a_floats + block.b_floats
                        : static_cast<float*>(target);
      const int64_t c_stride = narrow ? n : g.stride_c;
      float beta = narrow ? 0.0f : BeginBlock(g, j, m, n, c);
      int64_t p = 0;
      do {  // at least once: k == 0 still gives c
        const int64_t k = std::min(block.k, g.k - p);
        const float* a_block =
            g.trans_a ? a.Load(p, i, k, m) : a.Load(i, p, m, k);
        const float* b_block =
            g.trans_b ? b.Load(j, p, n, k) : b.Load(p, j, k, n);
        Sgemm(g.trans_a, g.trans_b, m, n, k, 1.0f, a_block, a.stride(), b_block,
              b.stride(), beta, c, c_stride);
        beta = 1.0f;
        p += k;
      } while (p < g.k);
      if (narrow) StoreBlock(g, c, target, j, m, n);
    }
  }
}

}  // namespace plo
