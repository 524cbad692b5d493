// The host Adam against the memory: one pass over fp32 master and moments with
// bf16 gradients in and bf16 params out moves 28 bytes per param, and should
// come near the rate of a non-temporal copy with the same threads.
//
//   bench_host_adam [params in Mi] [threads, 0 = all cores] [--json]
//
// Exits 0 whatever the ratio: a busy machine is no failure.
#include <emmintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "framework/ir/error.h"
#include "framework/runtime/host_pool.h"
#include "operators/adam_kernels.h"

namespace plo {
namespace {

constexpr int64_t kGrain = 16384;
constexpr double kGoal = 0.85;

// Pages of the kernel's largest size, where it has them; never freed. Arrays do
// not lie a large power of two apart: as in the arenas of the executor (see
// planning::AssignOffsets), and for the same reason.
template <typename T>
T* Map(int64_t count) {
  static size_t stagger = 0;
  stagger += 64 << 10;
  const size_t bytes = static_cast<size_t>(count) * sizeof(T) + stagger;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  PLO_ENFORCE(data != MAP_FAILED, kOutOfMemory, "cannot map ", bytes, " bytes");
  madvise(data, bytes, MADV_HUGEPAGE);
  return reinterpret_cast<T*>(static_cast<char*>(data) + stagger);
}

// Seconds of the fastest of some runs.
double Fastest(const std::function<void()>& run) {
  double best = 1e30;
  for (int i = 0; i < 7; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> taken =
        std::chrono::steady_clock::now() - begin;
    best = std::min(best, taken.count());
  }
  return best;
}

void StreamCopy(const float* from, float* to, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += 16) {
    for (int64_t k = 0; k < 16; k += 4) {
      _mm_stream_ps(to + i + k, _mm_load_ps(from + i + k));
    }
  }
  _mm_sfence();
}

struct Result {
  double copy_bytes_per_s = 0, adam_bytes_per_s = 0, seconds_per_1e9 = 0;
  double ratio() const { return adam_bytes_per_s / copy_bytes_per_s; }
};

Result Measure(HostPool& pool, int64_t params) {
  UpdateOperands o;
  float* master = o.master = Map<float>(params);
  o.moment1 = Map<float>(params);
  o.moment2 = Map<float>(params);
  uint16_t* grad = Map<uint16_t>(params);
  o.grad = grad;
  o.grad_dtype = DType::kBf16;
  o.param = Map<uint16_t>(params);
  o.param_dtype = DType::kBf16;
  // Each thread touches first what it will work on.
  pool.ParallelFor(params, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      o.master[i] = 0.01f * static_cast<float>(i % 97);
      grad[i] = static_cast<uint16_t>(0x3A83 + i % 31);
    }
    std::fill(o.moment1 + begin, o.moment1 + end, 0.0f);
    std::fill(o.moment2 + begin, o.moment2 + end, 0.0f);
    std::memset(static_cast<uint16_t*>(o.param) + begin, 0,
                static_cast<size_t>(end - begin) * 2);
  });

  Result result;
  const double copy = Fastest([&] {
    pool.ParallelFor(params, kGrain, [&](int64_t begin, int64_t end) {
      StreamCopy(o.moment1, o.moment2, begin, end);
    });
  });
  result.copy_bytes_per_s = 8.0 * static_cast<double>(params) / copy;

  UpdateRule rule;
  rule.beta1 = 0.9;
  rule.beta2 = 0.999;
  rule.eps = 1e-8;
  rule.weight_decay = 0.01;
  float record[kStepRecordSize] = {};
  record[kRecordLr] = 1e-4f;
  record[kRecordBiasCorrection1] = 0.1f;
  record[kRecordBiasCorrection2] = 0.001f;
  record[kRecordMultiplier] = record[kRecordUnclipped] = 1.0f;
  const AdamScalars scalars = FoldAdam(rule, {}, record);
  const UpdateKernels& kernels = GetUpdateKernels();
  const double adam = Fastest([&] {
    pool.ParallelFor(params, kGrain, [&](int64_t begin, int64_t end) {
      kernels.adam(scalars, o, begin, end);
    });
  });
  result.adam_bytes_per_s = 28.0 * static_cast<double>(params) / adam;
  result.seconds_per_1e9 = adam / static_cast<double>(params) * 1e9;
  PLO_ENFORCE(master[1] != 0.01f, kInternal, "the update did nothing");
  return result;
}

int Main(int argc, char** argv) {
  bool json = false;
  int64_t numbers[2] = {64, 0};
  int count = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--json") {
      json = true;
    } else if (count < 2) {
      numbers[count++] = std::atoll(argv[i]);
    }
  }
  const int64_t params = std::max<int64_t>(numbers[0], 1) << 20;
  HostPoolOptions options;
  options.threads = static_cast<int>(numbers[1]);
  HostPool pool(options);
  const Result r = Measure(pool, params);
  const char* isa = GetUpdateKernels().name;
  if (json) {
    std::printf(
        "{\"params\": %lld, \"threads\": %d, \"isa\": \"%s\", "
        "\"copy_bytes_per_s\": %.4g, \"adam_bytes_per_s\": %.4g, "
        "\"seconds_per_1e9_params\": %.4g, \"ratio\": %.4f}\n",
        static_cast<long long>(params), pool.threads(), isa, r.copy_bytes_per_s,
        r.adam_bytes_per_s, r.seconds_per_1e9, r.ratio());
    return 0;
  }
  std::printf("%lld Mi params, %d threads, %s\n",
              static_cast<long long>(params >> 20), pool.threads(), isa);
  std::printf("non-temporal copy  %7.1f GB/s\n", r.copy_bytes_per_s / 1e9);
  std::printf("fused Adam         %7.1f GB/s  %.3f s per 1e9 params\n",
              r.adam_bytes_per_s / 1e9, r.seconds_per_1e9);
  std::printf("ratio              %7.1f %%     goal %.0f %%\n", 100 * r.ratio(),
              100 * kGoal);
  return 0;
}

}  // namespace
}  // namespace plo

int main(int argc, char** argv) {
  try {
    return plo::Main(argc, argv);
  } catch (const plo::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
