// embedding: rows of a table by id; and the gradient of the table.
//
// The gradient orders the positions by id with a stable radix sort, then sums
// the rows of each id in position order: first in groups of kEmbeddingGroup,
// then the groups, so that an id that is everywhere is shared out to many
// blocks. All in a fixed order, without floating-point atomics. Rows that no id
// names are zeroed, or left alone when accumulating.
#include <algorithm>

#include "operators/embedding_plan.h"
#include "operators/packs.cuh"

namespace plo {
namespace {

constexpr int kThreads = 256;

// What an id must be, and who reports one that is not.
struct IdCheck {
  DeviceErrorSlot* error;
  int32_t op;
  int64_t rows;

  __device__ bool InRange(int64_t id) const { return id >= 0 && id < rows; }
  __device__ void Report(int64_t id, int64_t position) const {
    ReportIdOutOfRange(error, op, position, id, rows);
  }
};

int RowThreads(int64_t hidden, int pack) {
  return static_cast<int>(
      std::min<int64_t>(kThreads, DivideUp(DivideUp(hidden, pack), 32) * 32));
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    CopyRows(RowAccess access, IdCheck check, const int32_t* ids,
             const T* weight, T* out) {
  constexpr int kCount = kPackOf<T>;
  const int64_t position = blockIdx.x;
  const int64_t id = ids[position];
  const bool valid = check.InRange(id);
  if (!valid && threadIdx.x == 0) check.Report(id, position);
  T* to = out + position * access.n;
  for (int64_t column = int64_t{threadIdx.x} * kCount; column < access.n;
       column += int64_t{blockDim.x} * kCount) {
    Floats<kCount> values;
    if (valid) {
      values = LoadRow<kCount>(weight + id * access.n, column, access);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values.value[i] = NAN;
    }
    StoreRow(values, to, column, access);
  }
}

void EmbeddingKernel(KernelContext& context) {
  const Tensor& ids = context.In("ids");
  const Tensor& weight = context.In("weight");
  const Tensor& out = context.Out("out");
  if (out.numel == 0) return;
  const int64_t hidden = weight.shape[1];
  const IdCheck check = {context.env().device_error, context.op().id,
                         weight.shape[0]};
  DispatchDeviceFloat(weight.dtype, [&](auto type) {
    using T = decltype(type);
    const T* from = weight.as<const T>();
    T* to = out.as<T>();
    CopyRows<<<static_cast<unsigned>(ids.numel), RowThreads(hidden, kPackOf<T>),
               0, StreamOf(context)>>>(MakeRowAccess<T>(hidden, from, to),
                                       check, ids.as<const int32_t>(), from,
                                       to);
    CheckLaunch("CopyRows");
  });
}

// --- Sorting positions by id ---

constexpr int kWarps = kThreads / 32;
constexpr int kWarpKeys = static_cast<int>(kEmbeddingTile) / kWarps;
static_assert(kEmbeddingDigits == kThreads, "a thread has a digit");

// What a pass reads: the ids themselves at first.
struct SortInput {
  int64_t count;
  int shift;  // of the digit
  const int32_t* ids;
  const int32_t* positions;  // null in the first pass
  IdCheck check;

  __device__ int Digit(int32_t key) const {
    return key >> shift & static_cast<int>(kEmbeddingDigits - 1);
  }
  // A position with a bad id counts as one of row 0 without a position, which
  // makes that row NaN.
  __device__ void Get(int64_t i, int32_t& key, int32_t& position) const {
    key = ids[i];
    if (positions != nullptr) {
      position = positions[i];
      return;
    }
    position = static_cast<int32_t>(i);
    if (check.InRange(key)) return;
    key = 0;
    position = -1;
  }
};

__global__ void __launch_bounds__(kThreads)
    CountDigits(SortInput in, int32_t* counts) {
  __shared__ int32_t count[kEmbeddingDigits];
  count[threadIdx.x] = 0;
  __syncthreads();
  const int64_t begin = blockIdx.x * kEmbeddingTile;
  for (int i = static_cast<int>(threadIdx.x); i < kEmbeddingTile;
       i += kThreads) {
    const int64_t at = begin + i;
    if (at >= in.count) break;
    int32_t key, position;
    in.Get(at, key, position);
    if (in.positions == nullptr && position < 0) {
      in.check.Report(in.ids[at], at);
    }
    atomicAdd(&count[in.Digit(key)], 1);
  }
  __syncthreads();
  counts[int64_t{threadIdx.x} * gridDim.x + blockIdx.x] = count[threadIdx.x];
}

constexpr int kScanThreads = 1024;

// Exclusive prefix sums in place, by one block.
__global__ void __launch_bounds__(kScanThreads)
    ScanCounts(int64_t n, int32_t* counts) {
  __shared__ int32_t totals[32];
  const int64_t part = (n + kScanThreads - 1) / kScanThreads;
  const int64_t begin = min(n, threadIdx.x * part);
  const int64_t end = min(n, begin + part);
  int32_t sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += counts[i];
  // Inclusive sums over the threads of the warp, then over the warps.
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int32_t through = sum;
  for (unsigned k = 1; k < 32; k *= 2) {
    const int32_t below = __shfl_up_sync(0xFFFFFFFFu, through, k);
    if (lane >= k) through += below;
  }
  if (lane == 31) totals[warp] = through;
  __syncthreads();
  int32_t before = through - sum;
  for (unsigned w = 0; w < warp; ++w) before += totals[w];
  for (int64_t i = begin; i < end; ++i) {
    const int32_t count = counts[i];
    counts[i] = before;
    before += count;
  }
}

__global__ void __launch_bounds__(kThreads)
    ScatterKeys(SortInput in, const int32_t* starts, int32_t* keys,
                int32_t* positions) {
  // Of each warp, whose keys are consecutive: counts, then where to write next.
  __shared__ int32_t next[kWarps][kEmbeddingDigits];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const unsigned lane = threadIdx.x % 32;
  for (int w = 0; w < kWarps; ++w) next[w][threadIdx.x] = 0;
  __syncthreads();
  const int64_t begin = blockIdx.x * kEmbeddingTile + warp * kWarpKeys;
  for (int i = 0; i < kWarpKeys; i += 32) {
    const int64_t at = begin + i + lane;
    if (at >= in.count) break;
    int32_t key, position;
    in.Get(at, key, position);
    atomicAdd(&next[warp][in.Digit(key)], 1);
  }
  __syncthreads();
  int32_t start = starts[int64_t{threadIdx.x} * gridDim.x + blockIdx.x];
  for (int w = 0; w < kWarps; ++w) {
    const int32_t count = next[w][threadIdx.x];
    next[w][threadIdx.x] = start;
    start += count;
  }
  __syncthreads();
  for (int i = 0; i < kWarpKeys; i += 32) {
    const int64_t at = begin + i + lane;
    const bool valid = at < in.count;
    int32_t key = 0, position = 0;
    if (valid) in.Get(at, key, position);
    // Lanes beyond the end form a group of their own.
    const int digit =
        valid ? in.Digit(key) : static_cast<int>(kEmbeddingDigits);
    const unsigned same = __match_any_sync(0xFFFFFFFFu, digit);
    const int rank = __popc(same & ((1u << lane) - 1u));
    int32_t to = 0;
    if (valid) to = next[warp][digit] + rank;
    __syncwarp();
    if (valid && rank == 0) next[warp][digit] += __popc(same);
    __syncwarp();
    if (!valid) continue;
    keys[to] = key;
    positions[to] = position;
  }
}

__global__ void __launch_bounds__(kThreads)
    FindFirsts(int64_t count, const int32_t* keys, int32_t* firsts) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  if (i == 0 || keys[i - 1] != keys[i]) {
    firsts[keys[i]] = static_cast<int32_t>(i);
  }
}

// --- Sums ---

template <typename T>
struct SumOperands {
  int64_t count;
  RowAccess access;
  bool accumulate;
  const int32_t* keys;
  const int32_t* positions;
  const int32_t* firsts;
  const T* dout;
  float* sums;
  T* dweight;

  // Where the sum of the group that starts at sorted position `i` is kept. Two
  // rows for every kEmbeddingGroup positions: as many can only hold the start
  // of one id of several groups and of one later group.
  __device__ float* GroupSum(int64_t i, bool first) const {
    return sums + (i / kEmbeddingGroup * 2 + (first ? 0 : 1)) * access.n;
  }
  template <int kCount>
  __device__ void Finish(Floats<kCount> sum, int64_t row,
                         int64_t column) const {
    T* to = dweight + row * access.n;
    if (accumulate) {
      const Floats<kCount> before = LoadRow<kCount>(to, column, access);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sum.value[i] += before.value[i];
    }
    StoreRow(sum, to, column, access);
  }
};

// Block (i, strip): the group that starts at sorted position i, if one does.
template <typename T>
__global__ void __launch_bounds__(kThreads) SumGroups(SumOperands<T> o) {
  constexpr int kCount = kPackOf<T>;
  const int64_t i = blockIdx.x;
  const int32_t key = o.keys[i];
  const int64_t offset = i - o.firsts[key];
  if (offset % kEmbeddingGroup != 0) return;
  // Positions with this id, of which the group has `length`: a prefix of those
  // that follow.
  int length = 0;
  for (int64_t k = threadIdx.x % 32; k < kEmbeddingGroup; k += 32) {
    const bool same = i + k < o.count && o.keys[i + k] == key;
    length += __popc(__ballot_sync(0xFFFFFFFFu, same));
  }
  const int64_t next = i + kEmbeddingGroup;
  const bool whole = offset == 0 && !(next < o.count && o.keys[next] == key);
  const int64_t column =
      (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kCount;
  if (column >= o.access.n) return;
  Floats<kCount> sum = {};
#pragma unroll 4
  for (int j = 0; j < length; ++j) {
    const int64_t position = o.positions[i + j];
    const Floats<kCount> values = LoadRow<kCount>(
        o.dout + max(position, int64_t{0}) * o.access.n, column, o.access);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      sum.value[k] += position < 0 ? NAN : values.value[k];
    }
  }
  if (whole) return o.Finish(sum, key, column);
  StoreRow(sum, o.GroupSum(i, offset == 0), column, o.access);
}

// Block (window, strip): adds up the groups of the id of several groups that
// starts among these kEmbeddingGroup sorted positions, if one does.
template <typename T>
__global__ void __launch_bounds__(kThreads) SumLongIds(SumOperands<T> o) {
  constexpr int kCount = kPackOf<T>;
  const int64_t lane = threadIdx.x % 32;
  int64_t first = -1;
  for (int64_t k = 0; k < kEmbeddingGroup; k += 32) {
    const int64_t i = blockIdx.x * kEmbeddingGroup + k + lane;
    const int64_t next = i + kEmbeddingGroup;
    const bool starts = next < o.count && o.keys[next] == o.keys[i] &&
                        (i == 0 || o.keys[i - 1] != o.keys[i]);
    const unsigned found = __ballot_sync(0xFFFFFFFFu, starts);
    if (found != 0) {
      first =
          blockIdx.x * kEmbeddingGroup + k + __ffs(static_cast<int>(found)) - 1;
    }
  }
  if (first < 0) return;
  const int32_t key = o.keys[first];
  const int64_t column =
      (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kCount;
  const bool active = column < o.access.n;
  Floats<kCount> sum = {};
  if (active) {
    sum = LoadRow<kCount>(o.GroupSum(first, true), column, o.access);
  }
  for (int64_t group = 1;; group += 32) {
    const int64_t i = first + (group + lane) * kEmbeddingGroup;
    const bool same = i < o.count && o.keys[i] == key;
    const int groups = __popc(__ballot_sync(0xFFFFFFFFu, same));
    if (active) {
#pragma unroll 4
      for (int g = 0; g < groups; ++g) {
        const Floats<kCount> values = LoadRow<kCount>(
            o.GroupSum(first + (group + g) * kEmbeddingGroup, false), column,
            o.access);
#pragma unroll
        for (int k = 0; k < kCount; ++k) sum.value[k] += values.value[k];
      }
    }
    if (groups < 32) break;
  }
  if (active) o.Finish(sum, key, column);
}

// Sorts; returns which of the plan's key and position arrays have the result.
int SortPositions(cudaStream_t stream, const EmbeddingPlan& plan,
                  const IdCheck& check, const int32_t* ids, int64_t count,
                  int32_t* workspace) {
  int32_t* counts = workspace + plan.counts;
  const auto tiles = static_cast<unsigned>(plan.tiles);
  SortInput in = {count, 0, ids, nullptr, check};
  for (int pass = 0; pass < plan.passes; ++pass) {
    int32_t* keys = workspace + plan.keys[pass % 2];
    int32_t* positions = workspace + plan.positions[pass % 2];
    CountDigits<<<tiles, kThreads, 0, stream>>>(in, counts);
    ScanCounts<<<1, kScanThreads, 0, stream>>>(kEmbeddingDigits * plan.tiles,
                                               counts);
    ScatterKeys<<<tiles, kThreads, 0, stream>>>(in, counts, keys, positions);
    CheckLaunch("ScatterKeys");
    in.ids = keys;
    in.positions = positions;
    in.shift += kEmbeddingDigitBits;
  }
  return (plan.passes - 1) % 2;
}

void EmbeddingGradKernel(KernelContext& context) {
  const Tensor& ids = context.In("ids");
  const Tensor& dout = context.In("dout");
  const Tensor& dweight = context.Out("dweight");
  const Tensor* acc = context.TryIn("acc");
  const int64_t rows = dweight.shape[0], hidden = dweight.shape[1];
  const int64_t count = ids.numel;
  const cudaStream_t stream = StreamOf(context);
  const auto bytes = static_cast<size_t>(dweight.numel * SizeOf(dweight.dtype));
  if (bytes > 0 && acc == nullptr) {
    CheckCuda(cudaMemsetAsync(dweight.data, 0, bytes, stream),
              "cudaMemsetAsync");
  } else if (bytes > 0 && acc->data != dweight.data) {
    CheckCuda(cudaMemcpyAsync(dweight.data, acc->data, bytes,
                              cudaMemcpyDeviceToDevice, stream),
              "cudaMemcpyAsync");
  }
  if (count == 0) return;
  const EmbeddingPlan plan = MakeEmbeddingPlan(count, rows, hidden);
  auto* workspace = static_cast<int32_t*>(context.workspace());
  const IdCheck check = {context.env().device_error, context.op().id, rows};
  const int sorted = SortPositions(stream, plan, check, ids.as<const int32_t>(),
                                   count, workspace);
  if (bytes == 0) return;
  const int32_t* keys = workspace + plan.keys[sorted];
  int32_t* firsts = workspace + plan.firsts;
  FindFirsts<<<static_cast<unsigned>(DivideUp(count, kThreads)), kThreads, 0,
               stream>>>(count, keys, firsts);
  CheckLaunch("FindFirsts");
  DispatchDeviceFloat(dout.dtype, [&](auto type) {
    using T = decltype(type);
    SumOperands<T> o;
    o.count = count;
    o.accumulate = acc != nullptr;
    o.keys = keys;
    o.positions = workspace + plan.positions[sorted];
    o.firsts = firsts;
    o.dout = dout.as<const T>();
    o.sums = reinterpret_cast<float*>(workspace + plan.sums);
    o.dweight = dweight.as<T>();
    o.access = MakeRowAccess<T>(hidden, o.dout, o.dweight);
    const int threads = RowThreads(hidden, kPackOf<T>);
    const auto strips =
        static_cast<unsigned>(DivideUp(hidden, threads * kPackOf<T>));
    SumGroups<<<dim3(static_cast<unsigned>(count), strips), threads, 0,
                stream>>>(o);
    CheckLaunch("SumGroups");
    const auto windows =
        static_cast<unsigned>(DivideUp(count, kEmbeddingGroup));
    SumLongIds<<<dim3(windows, strips), threads, 0, stream>>>(o);
    CheckLaunch("SumLongIds");
  });
}

}  // namespace

void RegisterEmbeddingCuda(KernelRegistry& kernels) {
  kernels.Register("embedding", DeviceKind::kCuda, EmbeddingKernel);
  kernels.Register("embedding_grad", DeviceKind::kCuda, EmbeddingGradKernel);
}

}  // namespace plo
