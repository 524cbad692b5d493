// step_record on CUDA: the CPU's sums and record, by one thread.
#include "operators/cuda_util.cuh"
#include "operators/step_record.h"

namespace plo {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxStats = 4096;  // of one launch

// What each entry of the stats is for, two bits each.
enum Use : uint32_t { kNoUse = 0, kInNorm = 1, kCounter = 2 };
struct UseTable {
  int32_t count = 0;
  uint32_t words[kMaxStats / 16] = {};

  void Append(Use use) {
    words[count / 16] |= static_cast<uint32_t>(use) << (count % 16 * 2);
    ++count;
  }
  __device__ uint32_t At(int i) const {
    return (words[i / 16] >> (i % 16 * 2)) & 3u;
  }
};

struct State {
  StepRecordRule rule;
  std::vector<UseTable> tables;  // at least one
};

State MakeState(const KernelContext& context) {
  const AttrMap& attrs = context.attrs();
  State state;
  state.rule = {attrs.GetFloat("beta1"), attrs.GetFloat("beta2"),
                attrs.GetString("clip_mode") == "global_norm",
                attrs.GetFloat("clip_norm")};
  state.tables.emplace_back();
  for (const int64_t use : attrs.GetInts("need_clip")) {
    if (state.tables.back().count == kMaxStats) state.tables.emplace_back();
    state.tables.back().Append(use == kCountsInNorm       ? kInNorm
                               : use == kNonfiniteCounter ? kCounter
                                                          : kNoUse);
  }
  return state;
}

struct Sums {
  double squares, nonfinite;
};

struct RecordOperands {
  const float* lr;
  const float* scale;  // or null
  int64_t* applied_step;
  float* record;
};

// Adds a part of the stats to `sums`, in order; the last part makes the record.
__global__ void __launch_bounds__(kThreads)
    StepRecordKernel(const float* stats, Sums* sums, bool first, bool last,
                     const __grid_constant__ StepRecordRule rule,
                     const __grid_constant__ RecordOperands o,
                     const __grid_constant__ UseTable table) {
  __shared__ float values[kMaxStats];
  for (int i = threadIdx.x; i < table.count; i += kThreads) {
    values[i] = stats[i];
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  Sums total = {0, 0};
  if (!first) total = *sums;
  for (int i = 0; i < table.count; ++i) {
    const uint32_t use = table.At(i);
    if (use == kInNorm) total.squares += values[i];
    if (use == kCounter) total.nonfinite += values[i];
  }
  *sums = total;
  if (!last) return;
  const StepInputs in = {total.squares, total.nonfinite,
                         o.scale == nullptr ? 1.0 : *o.scale, *o.lr,
                         *o.applied_step};
  *o.applied_step = WriteStepRecord(rule, in, o.record);
}

void StepRecord(KernelContext& context) {
  const State& state =
      context.Cached<State>([&] { return MakeState(context); });
  const Tensor* scale = context.TryIn("scale");
  const RecordOperands operands = {
      context.In("lr").as<const float>(),
      scale == nullptr ? nullptr : scale->as<const float>(),
      context.Out("applied_step").as<int64_t>(),
      context.Out("record").as<float>()};
  const float* stats = context.In("stats").as<const float>();
  for (const UseTable& table : state.tables) {
    StepRecordKernel<<<1, kThreads, 0, StreamOf(context)>>>(
        stats, static_cast<Sums*>(context.workspace()),
        &table == &state.tables.front(), &table == &state.tables.back(),
        state.rule, operands, table);
    CheckLaunch("step_record");
    stats += table.count;
  }
}

}  // namespace

void RegisterStepRecordCuda(KernelRegistry& kernels) {
  kernels.Register("step_record", DeviceKind::kCuda, StepRecord);
}

}  // namespace plo
