// grad_stats on CUDA: the bits of the CPU's sums, in the order of
// grad_stats_layout.h.
#include "operators/cuda_util.cuh"
#include "operators/grad_stats_layout.h"

namespace plo {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kRowsOfWarp = 32 / kStatsLanes;
static_assert(kStatsRows == kWarps * kRowsOfWarp);

constexpr int kMaxRuns = 128;  // keeps the kernel arguments below 4 KiB
struct RunTable {
  int32_t count = 0;
  StatsRun runs[kMaxRuns];
};

struct BlockStats {
  double squares;
  long long nonfinite;
};
static_assert(sizeof(BlockStats) == 16);

struct Launch {
  RunTable table;
  int64_t first_segment = 0;
  int64_t blocks = 0;
};

struct State {
  std::vector<Launch> launches;  // at least one
};

State MakeState(const KernelContext& context) {
  State state;
  state.launches.emplace_back();
  int64_t segment = 0;
  for (const StatsRun& run : MakeStatsRuns(context)) {
    if (state.launches.back().table.count == kMaxRuns) {
      state.launches.emplace_back();
      state.launches.back().first_segment = segment;
    }
    Launch& launch = state.launches.back();
    launch.table.runs[launch.table.count++] = run;
    launch.blocks += DivideUp(run.n, kStatsBlock);
    ++segment;
  }
  return state;
}

// The run that a block belongs to; empty runs before it have the same
// first_block.
__device__ int FindRun(const RunTable& table, int64_t block) {
  int low = 0;
  int high = table.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table.runs[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

template <typename T>
union Pack {
  uint4 words;
  T values[16 / sizeof(T)];
};

// Elements [i, i + 16 / sizeof(T)) of `n`, with zeros past the end.
template <typename T>
__device__ uint4 LoadPack(const T* x, int64_t i, int64_t n, bool aligned) {
  constexpr int kValues = 16 / sizeof(T);
  if (aligned && i + kValues <= n) {
    return *reinterpret_cast<const uint4*>(x + i);
  }
  Pack<T> pack;
#pragma unroll
  for (int k = 0; k < kValues; ++k) {
    pack.values[k] = i + k < n ? x[i + k] : FromFloat<T>(0.0f);
  }
  return pack.words;
}

// One block of the layout per thread block. A warp has kRowsOfWarp rows and a
// thread one lane of a row. A step loads 128 bytes of each row, 16 per thread,
// and hands the elements to their lanes through shared memory.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BlockStatsKernel(const T* x, BlockStats* stats,
                     const __grid_constant__ RunTable table) {
  constexpr int kValues = 16 / sizeof(T);
  constexpr int kStep = kStatsLanes * kValues;
  constexpr int kSteps = static_cast<int>(kStatsRow) / kStep;
  constexpr int kAhead = 4;  // loads under way
  // 160 bytes per row keep the rows of a warp on different banks.
  constexpr int kPitch = 160;
  __shared__ __align__(16) char staging[kWarps][kRowsOfWarp * kPitch];
  __shared__ double row_squares[kStatsRows];
  __shared__ int warp_nonfinite[kWarps];

  const int64_t block = table.runs[0].first_block + blockIdx.x;
  const StatsRun& run = table.runs[FindRun(table, block)];
  const int64_t skipped = (block - run.first_block) * kStatsBlock;
  const T* values = x + run.begin + skipped;
  const int64_t n = min(kStatsBlock, run.n - skipped);
  const bool aligned = reinterpret_cast<uintptr_t>(values) % 16 == 0;

  const int warp = threadIdx.x / 32;
  const int row = threadIdx.x % 32 / kStatsLanes;
  const int lane = threadIdx.x % kStatsLanes;
  char* staged = staging[warp] + row * kPitch;
  const int64_t at =
      (warp * kRowsOfWarp + row) * kStatsRow + int64_t{lane} * kValues;
  double sum = 0;
  int nonfinite = 0;
  for (int step = 0; step < kSteps; step += kAhead) {
    uint4 packs[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      packs[k] = LoadPack(values, at + (step + k) * kStep, n, aligned);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      reinterpret_cast<uint4*>(staged)[lane] = packs[k];
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        const float value =
            ToFloat(reinterpret_cast<const T*>(staged)[i * kStatsLanes + lane]);
        const uint32_t magnitude = __float_as_uint(value) & 0x7FFFFFFFu;
        nonfinite += magnitude >= 0x7F800000u ? 1 : 0;
        // The product is exact: one rounding, as on the CPU.
        const double wide = value;
        sum = __fma_rn(wide, wide, sum);
      }
      __syncwarp();
    }
  }
#pragma unroll
  for (int half = kStatsLanes / 2; half > 0; half /= 2) {
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, half);
  }
  nonfinite = __reduce_add_sync(0xFFFFFFFFu, nonfinite);
  if (lane == 0) row_squares[warp * kRowsOfWarp + row] = sum;
  if (threadIdx.x % 32 == 0) warp_nonfinite[warp] = nonfinite;
  __syncthreads();
  if (threadIdx.x != 0) return;
  BlockStats total = {0, 0};
  for (int r = 0; r < kStatsRows; ++r) total.squares += row_squares[r];
  for (int w = 0; w < kWarps; ++w) total.nonfinite += warp_nonfinite[w];
  stats[block] = total;
}

constexpr int kJoinThreads = 32;
static_assert(kStatsJoinLanes == kJoinThreads);

// Adds up `get(i)`, i < n, in the lanes of a warp that join by halving. Lane 0
// has the result.
template <typename V, typename Get>
__device__ V JoinLanes(int64_t n, const Get& get) {
  V sum = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < n; i += kJoinThreads) sum += get(i);
#pragma unroll
  for (int half = kJoinThreads / 2; half > 0; half /= 2) {
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, half);
  }
  return sum;
}

// A block of one warp for each segment, small enough to start beside those of a
// product; `scale` may be null. The last block counts: `count` carries the
// values that are not finite from launch to launch, and the last launch writes
// it behind the sums.
__global__ void __launch_bounds__(kJoinThreads)
    JoinStatsKernel(const BlockStats* stats, int64_t blocks, const float* scale,
                    float* sums, long long* count, bool first, float* count_out,
                    const __grid_constant__ RunTable table) {
  const int r = static_cast<int>(blockIdx.x);
  if (r < table.count) {
    const StatsRun& run = table.runs[r];
    const BlockStats* const of_run = stats + run.first_block;
    const double sum =
        JoinLanes<double>((run.n + kStatsBlock - 1) / kStatsBlock,
                          [&](int64_t i) { return of_run[i].squares; });
    if (threadIdx.x > 0) return;
    sums[r] = UnscaledSquares(sum, scale == nullptr ? 1.0 : *scale);
    return;
  }
  const BlockStats* const of_launch = stats + table.runs[0].first_block;
  long long total = JoinLanes<long long>(
      blocks, [&](int64_t i) { return of_launch[i].nonfinite; });
  if (threadIdx.x > 0) return;
  if (!first) total += *count;
  *count = total;
  if (count_out != nullptr) *count_out = static_cast<float>(total);
}

void GradStatsKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor& out = context.Out("stats");
  const State& state =
      context.Cached<State>([&] { return MakeState(context); });
  const Tensor* scale_in = context.TryIn("scale");
  const float* scale =
      scale_in == nullptr ? nullptr : scale_in->as<const float>();
  const cudaStream_t stream = StreamOf(context);
  BlockStats* stats = static_cast<BlockStats*>(context.workspace());
  // The last bytes of the workspace.
  const int64_t max_blocks =
      MaxStatsBlocks(context.attrs().GetInt("slice_numel"), out.numel - 1);
  long long* count = reinterpret_cast<long long*>(stats + max_blocks);
  for (const Launch& launch : state.launches) {
    if (launch.blocks > 0) {
      DispatchDeviceFloat(x.dtype, [&](auto zero) {
        using T = decltype(zero);
        BlockStatsKernel<T>
            <<<static_cast<unsigned>(launch.blocks), kThreads, 0, stream>>>(
                x.as<const T>(), stats, launch.table);
      });
      CheckLaunch("grad_stats");
    }
    const bool last = &launch == &state.launches.back();
    float* sums = out.as<float>() + launch.first_segment;
    const auto join_blocks = static_cast<unsigned>(launch.table.count) + 1;
    JoinStatsKernel<<<join_blocks, kJoinThreads, 0, stream>>>(
        stats, launch.blocks, scale, sums, count, launch.first_segment == 0,
        last ? out.as<float>() + out.numel - 1 : nullptr, launch.table);
    CheckLaunch("grad_stats");
  }
}

}  // namespace

void RegisterGradStatsCuda(KernelRegistry& kernels) {
  kernels.Register("grad_stats", DeviceKind::kCuda, GradStatsKernel);
}

}  // namespace plo
