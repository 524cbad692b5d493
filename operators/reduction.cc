#include "operators/reduction.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "operators/float_loops.h"
#include "operators/kernel_util.h"

namespace plo {
namespace {

// Columns summed at a time: narrow, so that a few rows of outputs still are
// work for all threads.
constexpr int64_t kStrip = 512;

// One pass over x. columns(index, n, visit) makes outputs [index, index + n) of
// a kept run: visit(take) calls take(values) for each row that they sum.
// lanes(index, visit) makes one output: take(values, n) for each reduced run.
template <typename Columns, typename Lanes>
void Reduce(const Tensor& x, DimMask mask, const Tensor& out,
            const Columns& columns, const Lanes& lanes) {
  if (out.numel == 0) return;
  const ReductionLayout layout = MakeReductionLayout(x.shape, mask);
  const int64_t outer = layout.outer();
  const int64_t repeats = x.numel == 0 ? 0 : layout.repeats();
  const auto at = [&](int64_t kept_offset, int64_t r) {
    return kept_offset + layout.reduced.Offsets(r, layout.reduced.rank)[0];
  };
  if (!layout.run_kept) {
    ParallelFor(outer, x.numel, [&](int64_t o) {
      const int64_t base = layout.kept.Offsets(o, layout.kept.rank)[0];
      lanes(o, [&](const auto& take) {
        float buffer[kRowChunk];
        for (int64_t r = 0; r < repeats; ++r) {
          const int64_t start = at(base, r);
          ForRowChunks(layout.run, [&](int64_t begin, int64_t n) {
            take(FloatsAt(x.dtype, x.data, start + begin, n, buffer), n);
          });
        }
      });
    });
    return;
  }
  const int64_t strips = CeilDiv(layout.run, kStrip);
  ParallelFor(outer * strips, x.numel, [&](int64_t unit) {
    const int64_t o = unit / strips;
    const int64_t begin = unit % strips * kStrip;
    const int64_t n = std::min(kStrip, layout.run - begin);
    const int64_t base = layout.kept.Offsets(o, layout.kept.rank)[0] + begin;
    columns(o * layout.run + begin, n, [&](const auto& take) {
      float buffer[kStrip];
      for (int64_t r = 0; r < repeats; ++r) {
        take(FloatsAt(x.dtype, x.data, at(base, r), n, buffer));
      }
    });
  });
}

double Combine(const double (&lanes)[8]) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

}  // namespace

void SumOver(const Tensor& x, DimMask reduced, double factor,
             const Tensor& out) {
  const FloatLoops& loops = GetFloatLoops();
  const auto columns = [&](int64_t index, int64_t n, const auto& visit) {
    double sums[kStrip] = {};
    visit([&](const float* run) { loops.add_to_doubles(run, n, sums); });
    float rounded[kStrip];
    for (int64_t i = 0; i < n; ++i) {
      rounded[i] = static_cast<float>(sums[i] * factor);
    }
    StoreFloats(out.dtype, rounded, out.data, index, n);
  };
  const auto lanes = [&](int64_t index, const auto& visit) {
    double sums[8] = {};
    visit([&](const float* run, int64_t n) { loops.sum(run, n, sums); });
    const float rounded = static_cast<float>(Combine(sums) * factor);
    StoreFloats(out.dtype, &rounded, out.data, index, 1);
  };
  Reduce(x, reduced, out, columns, lanes);
}

void MaxOver(const Tensor& x, DimMask reduced, const Tensor& out) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const FloatLoops& loops = GetFloatLoops();
  const auto columns = [&](int64_t index, int64_t n, const auto& visit) {
    float best[kStrip];
    std::fill(best, best + n, kLowest);
    visit([&](const float* run) { loops.max(run, best, n, best); });
    StoreFloats(out.dtype, best, out.data, index, n);
  };
  const auto lanes = [&](int64_t index, const auto& visit) {
    float best = kLowest;
    visit([&](const float* run, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        best = run[i] > best || std::isnan(run[i]) ? run[i] : best;
      }
    });
    StoreFloats(out.dtype, &best, out.data, index, 1);
  };
  Reduce(x, reduced, out, columns, lanes);
}

}  // namespace plo
