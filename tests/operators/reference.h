// Plain loops in double, apart from the product's kernels. Inputs are the
// exact values of the tensors; nothing is rounded on the way.
#ifndef PLO_TESTS_OPERATORS_REFERENCE_H_
#define PLO_TESTS_OPERATORS_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/operators/op_harness.h"

namespace plo::testing {

using Doubles = std::vector<double>;

// op(a) [m, k] times op(b) [k, n].
inline Doubles ReferenceMatmul(const double* a, const double* b, bool trans_a,
                               bool trans_b, int64_t m, int64_t n, int64_t k) {
  Doubles c(static_cast<size_t>(m * n), 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p) {
        sum += (trans_a ? a[p * m + i] : a[i * k + p]) *
               (trans_b ? b[j * k + p] : b[p * n + j]);
      }
      c[static_cast<size_t>(i * n + j)] = sum;
    }
  }
  return c;
}

// Softmax over rows of `n`; also the log of the sum of exponentials.
struct SoftmaxResult {
  Doubles out, lse;
};
inline SoftmaxResult ReferenceSoftmax(const Doubles& x, int64_t n) {
  SoftmaxResult result;
  result.out.resize(x.size());
  for (size_t row = 0; n > 0 && row < x.size(); row += static_cast<size_t>(n)) {
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      top = std::max(top, x[row + static_cast<size_t>(j)]);
    }
    for (int64_t j = 0; j < n; ++j) {
      sum += std::exp(x[row + static_cast<size_t>(j)] - top);
    }
    for (int64_t j = 0; j < n; ++j) {
      const size_t i = row + static_cast<size_t>(j);
      result.out[i] = std::exp(x[i] - top) / sum;
    }
    result.lse.push_back(top + std::log(sum));
  }
  return result;
}

struct LayerNormResult {
  Doubles out, mean, rstd;
};
// `weight` and `bias` may be empty.
inline LayerNormResult ReferenceLayerNorm(const Doubles& x,
                                          const Doubles& weight,
                                          const Doubles& bias, int64_t n,
                                          double eps) {
  LayerNormResult result;
  result.out.resize(x.size());
  const size_t width = static_cast<size_t>(n);
  for (size_t row = 0; n > 0 && row < x.size(); row += width) {
    double sum = 0, squares = 0;
    for (size_t j = 0; j < width; ++j) sum += x[row + j];
    const double mean = sum / static_cast<double>(n);
    for (size_t j = 0; j < width; ++j) {
      squares += (x[row + j] - mean) * (x[row + j] - mean);
    }
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
    for (size_t j = 0; j < width; ++j) {
      result.out[row + j] =
          (x[row + j] - mean) * rstd * (weight.empty() ? 1 : weight[j]) +
          (bias.empty() ? 0 : bias[j]);
    }
    result.mean.push_back(mean);
    result.rstd.push_back(rstd);
  }
  return result;
}

struct AttentionResult {
  Doubles out, lse;  // [B, S, H, D], [B, H, S]
};
// q [B, S, H, D], k and v [B, S, G, D].
inline AttentionResult ReferenceAttention(const Array& q, const Array& k,
                                          const Array& v, bool causal,
                                          double scale) {
  const int64_t batch = q.shape[0], seq = q.shape[1], heads = q.shape[2],
                dim = q.shape[3], groups = k.shape[2];
  AttentionResult r;
  r.out.assign(q.values.size(), 0.0);
  r.lse.assign(static_cast<size_t>(batch * heads * seq), 0.0);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t g = h / (heads / groups);
      for (int64_t i = 0; i < seq; ++i) {
        const int64_t count = causal ? i + 1 : seq;
        Doubles score(static_cast<size_t>(count));
        for (int64_t j = 0; j < count; ++j) {
          double dot = 0;
          for (int64_t d = 0; d < dim; ++d) {
            dot += q[((b * seq + i) * heads + h) * dim + d] *
                   k[((b * seq + j) * groups + g) * dim + d];
          }
          score[static_cast<size_t>(j)] = dot * scale;
        }
        const SoftmaxResult p = ReferenceSoftmax(score, count);
        r.lse[static_cast<size_t>((b * heads + h) * seq + i)] = p.lse[0];
        for (int64_t j = 0; j < count; ++j) {
          for (int64_t d = 0; d < dim; ++d) {
            r.out[static_cast<size_t>(((b * seq + i) * heads + h) * dim + d)] +=
                p.out[static_cast<size_t>(j)] *
                v[((b * seq + j) * groups + g) * dim + d];
          }
        }
      }
    }
  }
  return r;
}

// Sum over the rows whose label is not `ignore_index` of lse - logit[label].
struct CrossEntropyResult {
  double loss = 0;
  Doubles lse;
};
inline CrossEntropyResult ReferenceCrossEntropy(const Doubles& logits,
                                                const Doubles& labels,
                                                int64_t classes,
                                                double ignore_index) {
  CrossEntropyResult r;
  r.lse = ReferenceSoftmax(logits, classes).lse;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == ignore_index) continue;
    r.loss += r.lse[i] - logits[i * static_cast<size_t>(classes) +
                                static_cast<size_t>(labels[i])];
  }
  return r;
}

}  // namespace plo::testing

#endif  // PLO_TESTS_OPERATORS_REFERENCE_H_
