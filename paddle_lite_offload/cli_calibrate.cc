// plo calibrate: what this machine does per second, measured once and kept.
#include <cstdio>
#include <filesystem>

#include "framework/ir/file_io.h"
#include "paddle_lite_offload/calibration.h"
#include "paddle_lite_offload/cli.h"
#include "paddle_lite_offload/cli_flags.h"
#include "paddle_lite_offload/cli_outputs.h"
#include "paddle_lite_offload/launch.h"
#include "paddle_lite_offload/machine.h"
#include "paddle_lite_offload/trainer.h"

namespace plo {
namespace {

constexpr int64_t kMostMiB = 64 << 10;

struct CalibrateFlags {
  std::string device = "auto";
  int64_t nproc = 1;
  std::string out;
  bool force = false;
  int64_t size_mb = 0;
  double seconds = 0.3;
};

void CheckFlags(const CalibrateFlags& flags) {
  CheckUsage([&] {
    PLO_ENFORCE(flags.device == "auto" || flags.device == "cpu" ||
                    flags.device == "cuda",
                kInvalidArgument, "--device=", flags.device,
                ": expected one of auto, cpu, cuda");
    PLO_ENFORCE(flags.size_mb >= 0 && flags.size_mb <= kMostMiB,
                kInvalidArgument, "--size_mb must be in [0, ", kMostMiB,
                "], got ", flags.size_mb);
    PLO_ENFORCE(flags.seconds > 0 && flags.seconds <= 60, kInvalidArgument,
                "--seconds must be in (0, 60], got ", flags.seconds);
    PLO_ENFORCE(!flags.force || flags.out.empty(), kInvalidArgument,
                "--force has no effect with --out, which keeps nothing");
  });
  CheckOutputs({{"--out", flags.out}});
}

// Prints what is kept from an earlier call, if anything is.
bool ShowCached(const CalibrateFlags& flags, const std::string& path) {
  std::error_code ignored;
  if (flags.force || !flags.out.empty() || path.empty() ||
      !std::filesystem::exists(path, ignored)) {
    return false;
  }
  try {
    const std::string text = RatesText(LoadRates(path));
    std::fprintf(stderr, "cached in %s; --force measures again\n",
                 path.c_str());
    std::printf("%s", text.c_str());
    return true;
  } catch (const Error& error) {
    std::fprintf(stderr, "warning: %s; measuring again\n", error.what());
    return false;
  }
}

void Keep(const std::string& text, const std::string& path) {
  if (path.empty()) {
    std::fprintf(stderr,
                 "warning: the rates are not kept: neither XDG_CACHE_HOME nor "
                 "HOME names a folder\n");
    return;
  }
  try {
    MakeFolder(std::filesystem::path(path).parent_path().string());
    WriteFile(path, text);
    std::fprintf(stderr, "kept in %s\n", path.c_str());
  } catch (const Error& error) {
    std::fprintf(stderr, "warning: the rates are not kept: %s\n", error.what());
  }
}

// Whether rank 0 found that there is nothing to do.
bool Agree(Comm* comm, bool done) {
  if (comm == nullptr) return done;
  int64_t value = done ? 1 : 0;
  comm->host().Broadcast(&value, sizeof(value), 0, nullptr);
  return value != 0;
}

void MeasureOnRank(const CalibrateFlags& flags, const LaunchInfo& info,
                   DeviceKind device, Comm* comm) {
  const std::string model = DeviceModel(device);
  const std::string path = CachedRatesPath(model, info.world_size);
  if (Agree(comm, info.rank == 0 && ShowCached(flags, path))) return;
  CalibrationOptions options;
  options.device = device;
  options.comm = comm;
  options.local_rank = info.local_rank;
  options.local_world_size = info.local_world_size;
  options.buffer_bytes = flags.size_mb << 20;
  options.seconds = flags.seconds;
  if (info.rank == 0) {
    options.progress = [](const std::string& line) {
      std::fprintf(stderr, "%s\n", line.c_str());
    };
  }
  Rates rates = MeasureRates(options);
  if (info.rank != 0) return;
  rates.name = StrCat(model.empty() ? "gpu" : model, "_", info.world_size);
  const std::string text = RatesText(rates);
  std::printf("%s", text.c_str());
  std::fflush(stdout);
  if (flags.out.empty()) {
    Keep(text, path);
  } else {
    WriteFile(flags.out, text);
  }
}

int RunRank(const CalibrateFlags& flags, DeviceKind device) {
  const LaunchInfo info = ReadLaunchInfo();
  CheckUsage([&] {
    PLO_ENFORCE(flags.nproc == 1 || flags.nproc == info.world_size,
                kInvalidArgument, "--nproc=", flags.nproc,
                " contradicts WORLD_SIZE=", info.world_size);
  });
  const std::unique_ptr<Comm> comm = ConnectRanks(device, info);
  try {
    MeasureOnRank(flags, info, device, comm.get());
    if (comm) comm->Barrier();
    return 0;
  } catch (const std::exception& error) {
    if (comm) comm->Abort(StrCat("rank ", info.rank, ": ", error.what()));
    throw;
  }
}

}  // namespace

int CalibrateCommand(const CliArgs& args) {
  static CalibrateFlags flags;  // gflags keeps pointers into it
  FlagSet set;
  set.Add("device", &flags.device, "auto, cpu or cuda");
  set.Add("nproc", &flags.nproc, "ranks to start, which work at once");
  set.Add("out", &flags.out,
          "file to write the rates to, for --rates; without it they are kept "
          "and plan, train and compare find them");
  set.Add("force", &flags.force, "measure again what is kept");
  set.Add("size_mb", &flags.size_mb,
          "MiB of what is copied; 0: 256 on a GPU, 32 on a CPU");
  set.Add("seconds", &flags.seconds, "of each measurement");
  RejectPositional("calibrate", set.Parse(args));
  if (set.asked_for_help()) {
    std::printf("usage: plo calibrate [--flag=value ...]\n\n%s",
                set.Help().c_str());
    return 0;
  }
  CheckFlags(flags);
  const DeviceKind device = ResolveDevice(flags.device);
  if (IsWorker() || flags.nproc == 1) return RunRank(flags, device);
  const int nproc = LocalRanks(flags.nproc);
  if (ShowCached(flags, CachedRatesPath(DeviceModel(device), nproc))) return 0;
  CliArgs argv = {"/proc/self/exe", "calibrate"};
  argv.insert(argv.end(), args.begin(), args.end());
  return RunLocalWorkers(nproc, argv).status;
}

}  // namespace plo
