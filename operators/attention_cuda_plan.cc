// What attention on CUDA is planned with; no CUDA needed.
#include <algorithm>

#include "operators/attention_cuda.h"
#include "operators/kernel_util.h"

namespace plo {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// Score grads that the calls are cut to, and the most that one kv head may
// need before the plain kernels, linear in the sequence, take over.
constexpr int64_t kScoreTarget = 128 * kMiB;
constexpr int64_t kScoreLimit = 512 * kMiB;
// cuDNN's own small things: sequence lengths, descriptors.
constexpr int64_t kCudnnSlack = 2 * kMiB;
constexpr int64_t kCudnnTile = 128;
// Below these the plain kernels do, which keep the weights in fp32.
constexpr int64_t kCudnnMinSeq = 64;
constexpr int64_t kCudnnMinDim = 32;
constexpr int64_t kCudnnMaxDim = 128;

bool CudnnServes(const AttentionShape& s) {
  return Is16Bit(s.dtype) && s.batch > 0 && s.seq >= kCudnnMinSeq &&
         s.dim >= kCudnnMinDim && s.dim <= kCudnnMaxDim && s.dim % 8 == 0;
}

int64_t PaddedSeq(const AttentionShape& s) {
  return RoundUp(s.seq, kCudnnTile);
}

int64_t ScoreBytes(const AttentionShape& s, const CudnnPart& part) {
  const int64_t heads = part.kv_heads * (s.heads / s.kv_heads);
  return part.batch * heads * PaddedSeq(s) * PaddedSeq(s) * 2;
}

int64_t LargestDivisor(int64_t n, int64_t most) {
  for (int64_t d = std::clamp<int64_t>(most, 1, n); d > 1; --d) {
    if (n % d == 0) return d;
  }
  return 1;
}

// A float per row of scores.
int64_t RowBytes(const AttentionShape& s) {
  return s.batch * s.heads * s.seq * static_cast<int64_t>(sizeof(float));
}

}  // namespace

CudnnPart CudnnForwardPart(const AttentionShape& s) {
  if (!CudnnServes(s)) return {};
  return {s.batch, s.kv_heads};
}

CudnnPart CudnnBackwardPart(const AttentionShape& s) {
  if (!CudnnServes(s)) return {};
  const int64_t head = ScoreBytes(s, {1, 1});
  const int64_t sample = head * s.kv_heads;
  if (head > kScoreLimit) return {};
  if (sample <= kScoreTarget) {
    return {LargestDivisor(s.batch, kScoreTarget / sample), s.kv_heads};
  }
  return {1, LargestDivisor(s.kv_heads, kScoreTarget / head)};
}

int64_t CudaAttentionForwardWorkspace(const AttentionShape& s) {
  return CudnnForwardPart(s).batch == 0 ? 0 : kCudnnSlack;
}

int64_t CudaAttentionBackwardWorkspace(const AttentionShape& s) {
  const CudnnPart part = CudnnBackwardPart(s);
  if (part.batch == 0) return RowBytes(s);
  const int64_t group = s.heads / s.kv_heads;
  const int64_t heads = part.batch * part.kv_heads * group;
  int64_t bytes = ScoreBytes(s, part) + kCudnnSlack;
  // Sums of dout * out, and dk and dv of each head before a group is summed.
  bytes += heads * PaddedSeq(s) * static_cast<int64_t>(sizeof(float));
  if (group > 1) {
    bytes +=
        2 * heads * PaddedSeq(s) * s.dim * static_cast<int64_t>(sizeof(float));
  }
  return std::max(bytes, RowBytes(s));
}

}  // namespace plo
