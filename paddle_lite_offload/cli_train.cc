// plo train and plo generate.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "framework/ir/file_io.h"
#include "framework/runtime/comm.h"
#include "paddle_lite_offload/cli.h"
#include "paddle_lite_offload/cli_flags.h"
#include "paddle_lite_offload/cli_outputs.h"
#include "paddle_lite_offload/launch.h"
#include "paddle_lite_offload/offload_choice.h"
#include "paddle_lite_offload/report.h"
#include "paddle_lite_offload/trainer.h"

namespace plo {
namespace {

constexpr int64_t kMaxLocalRanks = 1024;
constexpr int64_t kLogLines = 20;  // of a run whose output is no terminal

struct TrainFlags {
  TrainConfig config;
  int64_t nproc = 1;
  std::string json;
  bool quiet = false;
};

std::string Ms(double ms) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f ms", ms);
  return text;
}

// Shows how far a run is: a bar on a terminal, now and then a line elsewhere.
class Progress {
 public:
  explicit Progress(int64_t steps)
      : steps_(steps), terminal_(isatty(STDERR_FILENO) != 0) {}

  void Show(const StepMetrics& metrics) {
    const bool last = metrics.step == steps_;
    const int64_t every = std::max<int64_t>(1, steps_ / kLogLines);
    const StepResult& result = metrics.result;
    if (result.skipped) {
      std::fprintf(stderr,
                   "%sstep %lld skipped: a gradient or the norm of all is not "
                   "finite, loss scale was %g\n",
                   terminal_ ? "\r\033[K" : "",
                   static_cast<long long>(metrics.step),
                   result.loss_scale.value_or(1));
    }
    if (!terminal_ && !last && metrics.step != 1 && metrics.step % every != 0) {
      return;
    }
    char line[160];
    std::snprintf(line, sizeof(line),
                  "step %lld/%lld  loss %.4f  grad norm %.3f  lr %.2e  %.1f ms",
                  static_cast<long long>(metrics.step),
                  static_cast<long long>(steps_), result.loss, result.grad_norm,
                  result.lr, metrics.step_ms);
    if (!terminal_) {
      std::fprintf(stderr, "%s\n", line);
      return;
    }
    constexpr int kWidth = 24;
    const int filled = static_cast<int>(kWidth * metrics.step / steps_);
    const std::string bar =
        std::string(filled, '#') + std::string(kWidth - filled, '.');
    std::fprintf(stderr, "\r\033[K[%s] %s%s", bar.c_str(), line,
                 last ? "\n" : "");
  }

 private:
  int64_t steps_;
  bool terminal_;
};

std::vector<FlagPath> AllOutputs(const TrainFlags& flags, int rank) {
  std::vector<FlagPath> outputs = RunOutputs(flags.config, rank);
  if (rank == 0) outputs.push_back({"--json", flags.json});
  return outputs;
}

int Launch(const TrainFlags& flags, const char* command, const CliArgs& args) {
  const int nproc = LocalRanks(flags.nproc);
  // Here once instead of once per worker.
  CheckRun(flags.config, nproc);
  CheckOutputs(AllOutputs(flags, 0), RunInputs(flags.config));
  CliArgs argv = {"/proc/self/exe", command};
  argv.insert(argv.end(), args.begin(), args.end());
  return RunLocalWorkers(nproc, argv).status;
}

// What a rank can find wrong alone, before it waits for others.
std::optional<PreparedRun> PrepareRank(const TrainFlags& flags,
                                       const LaunchInfo& info) {
  CheckUsage([&] {
    PLO_ENFORCE(flags.nproc == 1 || flags.nproc == info.world_size,
                kInvalidArgument, "--nproc=", flags.nproc,
                " contradicts WORLD_SIZE=", info.world_size);
    ValidateTrainConfig(flags.config, info.world_size);
  });
  CheckOutputs(AllOutputs(flags, info.rank), RunInputs(flags.config));
  // What the machine chooses the ranks must agree on.
  if (info.world_size > 1 && ChoosesByMachine(flags.config)) {
    return std::nullopt;
  }
  TrainConfig config = flags.config;
  if (info.rank != 0) config.dump_ir_dir.clear();
  const DeviceKind device = ResolveDevice(config.device);
  FindRates(config, device, info.world_size);  // a bad file is no bad usage
  return CheckUsage([&] {
    return PrepareRun(config, info.world_size, device, info.local_rank);
  });
}

void WarnOfBadEnd(const TrainOutcome& run) {
  if (!std::isfinite(run.losses.back())) {
    std::fprintf(stderr,
                 "warning: the last loss is %g: the training diverged\n",
                 run.losses.back());
  } else if (run.skipped_steps == static_cast<int64_t>(run.losses.size())) {
    std::fprintf(stderr,
                 "warning: all steps were skipped: the params are as at the "
                 "start\n");
  }
}

// What can still fail comes after what is known.
void ShowResults(const TrainFlags& flags, Trainer& trainer,
                 TrainReport& report) {
  WarnOfBadEnd(*report.outcome);
  if (!flags.quiet) std::printf("%s", DescribeReport(report).c_str());
  std::exception_ptr no_sample;
  if (flags.config.generate > 0) {
    try {
      report.sample = trainer.Generate();
      if (!flags.quiet) std::printf("\nsample:\n");
      std::fwrite(report.sample->data(), 1, report.sample->size(), stdout);
      std::printf("\n");
    } catch (const Error&) {
      no_sample = std::current_exception();
    }
  }
  std::fflush(stdout);
  if (!flags.json.empty()) WriteFile(flags.json, JsonText(ToJson(report)));
  if (no_sample) std::rethrow_exception(no_sample);
}

// Runs this rank; rank 0 reports.
int RunRank(const TrainFlags& flags) {
  const LaunchInfo info = ReadLaunchInfo();
  std::optional<PreparedRun> run = PrepareRank(flags, info);
  const std::unique_ptr<Comm> comm =
      ConnectRanks(ResolveDevice(flags.config.device), info);
  try {
    Progress progress(flags.config.steps);
    TrainerOptions options;
    options.comm = comm.get();
    options.local_rank = info.local_rank;
    options.local_world_size = info.local_world_size;
    if (info.rank == 0) {
      options.on_step = [&](const StepMetrics& m) { progress.Show(m); };
    }
    Trainer trainer(flags.config, std::move(run), options);
    if (info.rank == 0 && !flags.quiet) {
      std::fprintf(stderr, "%s", trainer.DescribeChoices().c_str());
    }
    trainer.Run();
    TrainReport report = trainer.Report();
    if (info.rank == 0) ShowResults(flags, trainer, report);
    if (comm) comm->Barrier();
    return 0;
  } catch (const std::exception& error) {
    if (comm) comm->Abort(StrCat("rank ", info.rank, ": ", error.what()));
    throw;
  }
}

int TrainOrGenerate(const CliArgs& args, const char* command) {
  static TrainFlags storage;  // gflags keeps pointers into it
  if (std::string(command) == "generate") {
    storage.config.generate = 200;
    storage.quiet = true;
  }
  FlagSet set;
  set.AddConfig(&storage.config);
  set.Add("nproc", &storage.nproc, "ranks to start on this machine");
  set.Add("json", &storage.json, "file to write the report to");
  set.Add("quiet", &storage.quiet, "print no report");
  RejectPositional(command, set.Parse(args));
  if (set.asked_for_help()) {
    std::printf("usage: plo %s [--flag=value ...]\n\n%s", command,
                set.Help().c_str());
    return 0;
  }
  if (!IsWorker() && storage.nproc != 1) return Launch(storage, command, args);
  return RunRank(storage);
}

std::string DescribeStreams(const std::vector<StreamUse>& streams) {
  std::string text;
  for (const StreamUse& use : streams) {
    char line[120];
    std::snprintf(line, sizeof(line),
                  "  %-8s busy %8.2f ms a step, not beside compute %8.2f ms, "
                  "%7.1f GB/s\n",
                  std::string(Name(use.stream)).c_str(), use.busy_ms,
                  use.stream == StreamKind::kCompute ? 0 : use.exposed_ms,
                  use.gigabytes_per_second);
    text += line;
  }
  return text.empty() ? text : "streams in the traced steps:\n" + text;
}

}  // namespace

int LocalRanks(int64_t nproc) {
  return CheckUsage([&] {
    PLO_ENFORCE(nproc >= 1 && nproc <= kMaxLocalRanks, kInvalidArgument,
                "--nproc must be in [1, ", kMaxLocalRanks, "], got ", nproc);
    return static_cast<int>(nproc);
  });
}

bool IsWorker() { return std::getenv("WORLD_SIZE") != nullptr; }

std::unique_ptr<Comm> ConnectRanks(DeviceKind device, const LaunchInfo& info) {
  if (info.world_size == 1) return nullptr;
  return device == DeviceKind::kCuda ? CreateNcclComm(info)
                                     : CreateGlooComm(info);
}

void CheckRun(const TrainConfig& config, int world_size) {
  CheckUsage([&] { ValidateTrainConfig(config, world_size); });
  const DeviceKind device = ResolveDevice(config.device);
  MakeBatchSource(config);
  Machine machine;
  machine.rates = FindRates(config, device, world_size);
  TrainConfig quiet = config;
  quiet.dump_ir_dir.clear();
  // The process of no rank leaves the GPUs alone. Full offload is the best
  // that auto can do.
  if (ChoosesByMemory(config) && device == DeviceKind::kCuda) {
    quiet.offload = "optimizer";
  }
  CheckUsage([&] { PrepareRun(quiet, world_size, device, machine); });
}

int TrainCommand(const CliArgs& args) { return TrainOrGenerate(args, "train"); }
int GenerateCommand(const CliArgs& args) {
  return TrainOrGenerate(args, "generate");
}

std::string DescribeReport(const TrainReport& report) {
  const MemoryReport& memory = report.memory;
  std::string text = StrCat(report.config.model, " with ", report.parameters,
                            " params, ", report.config.dtype, ", ",
                            report.world_size, " x ", report.device, "\n");
  if (report.outcome) {
    const TrainOutcome& run = *report.outcome;
    text += StrCat(
        "loss ", run.losses.back(), " after ", run.losses.size(), " steps, ",
        run.skipped_steps, " skipped; ", Ms(run.times.median_ms), " per step, ",
        static_cast<int64_t>(run.times.tokens_per_second), " tokens/s\n");
  }
  text += StrCat("device peak ", FormatByteCount(memory.planned_peak_bytes),
                 " planned");
  if (memory.measured) {
    text += ", " + FormatByteCount(memory.measured->peak_bytes) + " measured";
  }
  text += ", at " + memory.peak_op + "\n";
  for (int i = 0; i < kMemoryCategoryCount; ++i) {
    char line[80];
    std::snprintf(line, sizeof(line), "  %-16s %12s device %12s pinned\n",
                  std::string(Name(static_cast<MemoryCategory>(i))).c_str(),
                  FormatByteCount(memory.by_category[i]).c_str(),
                  FormatByteCount(memory.pinned_by_category[i]).c_str());
    text += line;
  }
  text += StrCat(
      "per step: ", FormatByteCount(report.d2h_bytes_per_step), " to host, ",
      FormatByteCount(report.h2d_bytes_per_step), " to device, ",
      FormatByteCount(report.collective_bytes_per_step), " to other ranks\n");
  if (report.estimated_step_ms) {
    text += "estimated step time " + Ms(*report.estimated_step_ms) +
            " by the rates of " + report.rates.value_or("?") + "\n";
  }
  if (report.outcome) text += DescribeStreams(report.outcome->streams);
  if (!report.chosen.empty()) text += "chosen: " + report.chosen + "\n";
  if (report.outcome) {
    text += "param digest " + report.outcome->param_digest + "\n";
  }
  return text;
}

}  // namespace plo
