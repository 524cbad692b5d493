#include "paddle_lite_offload/calibration.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <vector>

#include "framework/runtime/device.h"
#include "framework/runtime/host_pool.h"
#include "operators/register_ops.h"
#include "operators/step_record.h"
#include "paddle_lite_offload/timed_op.h"
#include "paddle_lite_offload/trainer.h"

namespace plo {
namespace {

using Clock = std::chrono::steady_clock;
using Span = StreamTracer::Span;

constexpr int64_t kGpuBuffer = 256 << 20;
constexpr int64_t kCpuBuffer = 32 << 20;
constexpr int64_t kBucket = 32 << 20;  // about what collectives take
constexpr int kMostLaunches = 5000;
constexpr int64_t kUpdateBytes = 28;  // of a param, as in UpdateTraffic

std::unique_ptr<Device> MakeDevice(const CalibrationOptions& options) {
  if (options.device == DeviceKind::kCuda) {
    CudaDeviceOptions cuda;
    cuda.ordinal = options.local_rank;
    return CreateCudaDevice(cuda);
  }
  CpuDeviceOptions cpu;
  cpu.compute_threads = ComputeThreads(options.local_world_size);
  return CreateCpuDevice(cpu);
}

double End(const Span& span) { return span.start_us + span.duration_us; }

class Calibration {
 public:
  explicit Calibration(const CalibrationOptions& options)
      : options_(options),
        buffer_(options.buffer_bytes > 0              ? options.buffer_bytes
                : options.device == DeviceKind::kCuda ? kGpuBuffer
                                                      : kCpuBuffer),
        pool_({.local_rank = options.local_rank,
               .local_world_size = options.local_world_size}),
        device_(MakeDevice(options)) {
    RegisterBuiltinOps();
    env_.pool = &pool_;
    env_.comm = options.comm;
    if (options.comm != nullptr) {
      env_.rank = options.comm->rank();
      env_.world_size = options.comm->size();
    }
  }

  Rates Measure() {
    Rates rates;
    rates.launch_us = LaunchMicroseconds();
    rates.matmul_flops = Matmul("16-bit matmul", DType::kBf16);
    rates.matmul_flops_fp32 = Matmul("fp32 matmul", DType::kFp32);
    rates.memory_bytes = DeviceMemory();
    rates.collective_bytes =
        env_.world_size > 1 ? Collective() : rates.memory_bytes;
    Host(rates);
    return LeastOfRanks(rates);
  }

 private:
  using Operand = TimedOp::Operand;

  std::unique_ptr<TimedOp> Make(const TimedOp::Spec& spec) {
    return std::make_unique<TimedOp>(*device_, env_, spec);
  }

  void Report(const char* what, double rate, const char* unit) const {
    if (!options_.progress) return;
    char line[80];
    std::snprintf(line, sizeof(line), "%-28s %10.4g %s", what, rate, unit);
    options_.progress(line);
  }
  double Bytes(const char* what, double rate) const {
    Report(what, rate / 1e9, "GB/s");
    return rate;
  }

  // The ranks do their next work at the same time.
  void Meet() const {
    if (env_.comm != nullptr) env_.comm->host().Barrier();
  }

  int64_t MostOfRanks(int64_t value) const {
    if (env_.comm != nullptr) {
      env_.comm->host().AllReduce(&value, 1, DType::kInt64, Reduction::kMax,
                                  nullptr);
    }
    return value;
  }

  Rates LeastOfRanks(Rates rates) const {
    for (const auto& [name, number] : NumbersOf(rates)) {
      // As integers: the host's sums of floats are in fp32.
      const bool time = number == &rates.launch_us;
      const double scale = time ? 1e3 : 1;
      const int64_t value = std::llround(*number * scale);
      const int64_t worst = time ? MostOfRanks(value) : -MostOfRanks(-value);
      *number = static_cast<double>(std::max<int64_t>(worst, 1)) / scale;
    }
    return rates;
  }

  double Seconds(TimedOp& op, int launches) const {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < launches; ++i) op.Launch(/*traced=*/false);
    op.Finish();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  // How many launches fill the time; the same on all ranks.
  int Launches(TimedOp& op) const {
    Seconds(op, 1);  // makes what is made once
    Meet();
    const double wanted = options_.seconds / Seconds(op, 1);
    return static_cast<int>(MostOfRanks(
        static_cast<int64_t>(std::clamp(wanted, 1.0, 1.0 * kMostLaunches))));
  }

  double RateAlone(TimedOp& op) const {
    const int launches = Launches(op);
    Meet();
    return launches * op.work() / Seconds(op, launches);
  }

  // The rate of each op while all of them are at work.
  std::vector<double> RatesTogether(const std::vector<TimedOp*>& ops) const {
    std::vector<int> launches;
    for (TimedOp* op : ops) launches.push_back(Launches(*op));
    Meet();
    for (int i = 0; i < *std::max_element(launches.begin(), launches.end());
         ++i) {
      for (size_t k = 0; k < ops.size(); ++k) {
        if (i < launches[k]) ops[k]->Launch(/*traced=*/true);
      }
    }
    std::vector<std::vector<Span>> spans;
    for (TimedOp* op : ops) {
      op->Finish();
      spans.push_back(op->TakeSpans());
    }
    double begin = 0, end = std::numeric_limits<double>::max();
    for (const std::vector<Span>& own : spans) {
      begin = std::max(begin, own.front().start_us);
      end = std::min(end, End(own.back()));
    }
    std::vector<double> rates;
    for (size_t k = 0; k < ops.size(); ++k) {
      // One that ends before another starts had no company.
      const bool together = begin < end;
      const double from = together ? begin : spans[k].front().start_us;
      const double to = together ? end : End(spans[k].back());
      double done = 0;
      for (const Span& span : spans[k]) {
        const double inside =
            std::min(End(span), to) - std::max(span.start_us, from);
        done += ops[k]->work() *
                std::max(0.0, inside / std::max(span.duration_us, 1e-3));
      }
      rates.push_back(done / (to - from) * 1e6);
    }
    return rates;
  }

  double LaunchMicroseconds() {
    const Shape few{256};
    const auto op =
        Make({.type = "add",
              .inputs = {{"x", DType::kFp32, few}, {"y", DType::kFp32, few}},
              .outputs = {{"out", DType::kFp32, few}},
              .work = 1});
    const double us = 1e6 / RateAlone(*op);
    Report("launch", us, "us");
    return us;
  }

  double Matmul(const char* what, DType dtype) {
    int64_t n = 64;
    while (2 * (2 * n) * (2 * n) <= buffer_ / 2) n *= 2;
    const Shape square{n, n};
    const auto op =
        Make({.type = "matmul",
              .inputs = {{"x", dtype, square}, {"y", dtype, square}},
              .outputs = {{"out", dtype, square}},
              .work = 2.0 * std::pow(static_cast<double>(n), 3)});
    const double flops = RateAlone(*op);
    Report(what, flops / 1e12, "TFLOP/s");
    return flops;
  }

  double DeviceMemory() {
    const Shape flat{buffer_ / 4};
    const auto op =
        Make({.type = "add",
              .inputs = {{"x", DType::kFp32, flat}, {"y", DType::kFp32, flat}},
              .outputs = {{"out", DType::kFp32, flat}},
              .work = 12.0 * static_cast<double>(flat.numel())});
    return Bytes("device memory", RateAlone(*op));
  }

  double Collective() {
    const int64_t slice =
        std::max<int64_t>(std::min(buffer_, kBucket) / 2 / env_.world_size, 1);
    const int64_t sent = 2 * slice * (env_.world_size - 1);
    const auto op =
        Make({.type = "reduce_scatter",
              .inputs = {{"x", DType::kBf16, Shape{slice * env_.world_size}}},
              .outputs = {{"out", DType::kBf16, Shape{slice}}},
              .stream = StreamKind::kComm,
              .work = static_cast<double>(sent)});
    return Bytes("reduce_scatter", RateAlone(*op));
  }

  std::unique_ptr<TimedOp> Copy(bool down) {
    const Shape flat{buffer_ / 4};
    const Operand device{"x", DType::kFp32, flat, Place::kDevice};
    const Operand pinned{"x", DType::kFp32, flat, Place::kPinned};
    Operand out = down ? pinned : device;
    out.slot = "out";
    return Make({.type = down ? "copy_d2h" : "copy_h2d",
                 .inputs = {down ? device : pinned},
                 .outputs = {out},
                 .stream = down ? StreamKind::kD2H : StreamKind::kH2D,
                 .work = 4.0 * static_cast<double>(flat.numel())});
  }

  std::unique_ptr<TimedOp> HostAdam() {
    const int64_t params = std::max<int64_t>(buffer_ / 8, 1);
    const Shape flat{params};
    constexpr Place kHost = Place::kPinned;
    TimedOp::Spec spec;
    spec.type = "adamw";
    spec.inputs = {{"grad", DType::kBf16, flat, kHost},
                   {"record", DType::kFp32, Shape{kStepRecordSize}, kHost},
                   {"master", DType::kFp32, flat, kHost},
                   {"moment1", DType::kFp32, flat, kHost},
                   {"moment2", DType::kFp32, flat, kHost}};
    for (const char* slot : {"master", "moment1", "moment2"}) {
      spec.outputs.push_back({slot, DType::kFp32, flat, kHost, slot});
    }
    // Takes the bytes of the gradient, as in training.
    spec.outputs.push_back({"param", DType::kBf16, flat, kHost, "grad"});
    spec.attrs.Set("sliced", false);
    spec.attrs.Set("segment_begins", std::vector<int64_t>{0});
    spec.attrs.Set("segment_numels", std::vector<int64_t>{params});
    spec.attrs.Set("segment_weight_decay", std::vector<double>{0.01});
    spec.attrs.Set("segment_lr_scale", std::vector<double>{1});
    spec.attrs.Set("segment_need_clip", std::vector<int64_t>{1});
    spec.stream = StreamKind::kHost;
    spec.work = static_cast<double>(kUpdateBytes * params);
    auto op = Make(spec);
    float record[kStepRecordSize] = {};
    record[kRecordLr] = 1e-4f;
    record[kRecordBiasCorrection1] = record[kRecordBiasCorrection2] = 1;
    record[kRecordMultiplier] = record[kRecordUnclipped] = 1;
    op->Write("record", record, sizeof(record));
    return op;
  }

  // The link and the host's memory, alone and beside each other.
  void Host(Rates& rates) {
    const auto down = Copy(/*down=*/true);
    const auto up = Copy(/*down=*/false);
    Bytes("device to host, alone", RateAlone(*down));
    Bytes("host to device, alone", RateAlone(*up));
    const std::vector<double> copies = RatesTogether({down.get(), up.get()});
    rates.d2h_bytes = Bytes("device to host, both ways", copies[0]);
    rates.h2d_bytes = Bytes("host to device, both ways", copies[1]);
    const auto adam = HostAdam();
    rates.host_adam_bytes = Bytes("Adam on the host", RateAlone(*adam));
    const std::vector<double> all =
        RatesTogether({adam.get(), down.get(), up.get()});
    Bytes("  beside both copies", all[0]);
    Bytes("  copies beside Adam", all[1] + all[2]);
    rates.host_memory_bytes =
        Bytes("Adam and copies in all", all[0] + all[1] + all[2]);
  }

  const CalibrationOptions& options_;
  const int64_t buffer_;
  KernelEnv env_;
  HostPool pool_;
  std::unique_ptr<Device> device_;
};

}  // namespace

Rates MeasureRates(const CalibrationOptions& options) {
  return Calibration(options).Measure();
}

}  // namespace plo
