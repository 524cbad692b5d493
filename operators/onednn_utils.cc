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

// The size of equal blocks of at most `limit`, for n > limit in steps of 16.
int64_t BlockSize(int64_t n, int64_t limit) {
  if (n <= limit) return n;
  return std::min(limit, RoundUp(CeilDiv(n, CeilDiv(n, limit)), 16));
}

struct Blocks {
  int64_t m, n, k;
};

Blocks BlocksOf(int64_t m, int64_t n, int64_t k) {
  return {BlockSize(m, kMaxRows), BlockSize(n, kMaxRows),
          BlockSize(k, kMaxDepth)};
}

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

void RunFp32(const GemmCall& g) {
  float* c = static_cast<float*>(g.c);
  float beta = g.accumulate ? 1.0f : 0.0f;
  if (g.bias != nullptr) {
    SetRows(static_cast<const float*>(g.bias), c, g.stride_c, g.m, g.n,
            g.accumulate);
    beta = 1.0f;
  }
  Sgemm(g.trans_a, g.trans_b, g.m, g.n, g.k, 1.0f,
        static_cast<const float*>(g.a), g.stride_a,
        static_cast<const float*>(g.b), g.stride_b, beta, c, g.stride_c);
}

// Keeps one converted block of an operand and which one it is.
struct ConvertedBlock {
  float* data;
  int64_t row = -1, col = -1;

  void Load(DType dtype, const void* src, int64_t stride, int64_t r, int64_t c,
            int64_t rows, int64_t cols) {
    if (r == row && c == col) return;
    row = r;
    col = c;
    ConvertMatrixToFloat(dtype, ElementAt(dtype, src, r * stride + c), stride,
                         data, cols, rows, cols);
  }
};

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

int64_t GemmWorkspaceBytes(DType dtype, int64_t m, int64_t n, int64_t k) {
  if (dtype == DType::kFp32 || m == 0 || n == 0) return 0;
  const Blocks block = BlocksOf(m, n, k);
  return (block.m * block.k + block.k * block.n + block.m * block.n) *
         static_cast<int64_t>(sizeof(float));
}

void RunGemm(const GemmCall& g, void* workspace) {
  if (g.m == 0 || g.n == 0) return;
  if (g.dtype == DType::kFp32) return RunFp32(g);
  const Blocks block = BlocksOf(g.m, g.n, g.k);
  ConvertedBlock a{static_cast<float*>(workspace)};
  ConvertedBlock b{a.data + block.m * block.k};
  float* c = b.data + block.k * block.n;
  for (int64_t j = 0; j < g.n; j += block.n) {
    const int64_t n = std::min(block.n, g.n - j);
    float bias[kMaxRows];
    if (g.bias != nullptr) {
      ConvertToFloat(g.dtype, ElementAt(g.dtype, g.bias, j), bias, n);
    }
    for (int64_t i = 0; i < g.m; i += block.m) {
      const int64_t m = std::min(block.m, g.m - i);
      void* target = ElementAt(g.dtype, g.c, i * g.stride_c + j);
      float beta = 0.0f;
      if (g.accumulate) {
        ConvertMatrixToFloat(g.dtype, target, g.stride_c, c, n, m, n);
        beta = 1.0f;
      }
      if (g.bias != nullptr) {
        SetRows(bias, c, n, m, n, g.accumulate);
        beta = 1.0f;
      }
      int64_t p = 0;
      do {  // at least once: k == 0 still gives c
        const int64_t k = std::min(block.k, g.k - p);
        if (g.trans_a) {
          a.Load(g.dtype, g.a, g.stride_a, p, i, k, m);
        } else {
          a.Load(g.dtype, g.a, g.stride_a, i, p, m, k);
        }
        if (g.trans_b) {
          b.Load(g.dtype, g.b, g.stride_b, j, p, n, k);
        } else {
          b.Load(g.dtype, g.b, g.stride_b, p, j, k, n);
        }
        Sgemm(g.trans_a, g.trans_b, m, n, k, 1.0f, a.data, g.trans_a ? m : k,
              b.data, g.trans_b ? k : n, beta, c, n);
        beta = 1.0f;
        p += block.k;
      } while (p < g.k);
      ConvertMatrixFromFloat(g.dtype, c, n, target, g.stride_c, m, n);
    }
  }
}

}  // namespace plo
