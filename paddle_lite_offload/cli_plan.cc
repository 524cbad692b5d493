// plo plan: what a run would need, without running it.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "framework/ir/file_io.h"
#include "paddle_lite_offload/cli.h"
#include "paddle_lite_offload/cli_flags.h"
#include "paddle_lite_offload/cli_outputs.h"
#include "paddle_lite_offload/report.h"
#include "paddle_lite_offload/trainer.h"

namespace plo {
namespace {

constexpr int64_t kMaxWorldSize = 1 << 20;

struct PlanFlags {
  TrainConfig config;
  int64_t nproc = 1;
  int64_t world_size = 0;
  std::string json;
  bool quiet = false;
};

}  // namespace

int PlanCommand(const CliArgs& args) {
  static PlanFlags flags;  // gflags keeps pointers into it
  FlagSet set;
  set.AddConfig(&flags.config);
  set.Add("nproc", &flags.nproc, "ranks, unless --world_size is given");
  set.Add("world_size", &flags.world_size, "ranks; 0: as many as --nproc");
  set.Add("json", &flags.json, "file to write the plan to");
  set.Add("quiet", &flags.quiet, "print no report");
  RejectPositional("plan", set.Parse(args));
  if (set.asked_for_help()) {
    std::printf("usage: plo plan [--flag=value ...]\n\n%s", set.Help().c_str());
    return 0;
  }
  const int64_t ranks = flags.world_size != 0 ? flags.world_size : flags.nproc;
  CheckUsage([&] {
    PLO_ENFORCE(ranks >= 1 && ranks <= kMaxWorldSize, kInvalidArgument,
                flags.world_size != 0 ? "--world_size" : "--nproc",
                " must be in [1, ", kMaxWorldSize, "], got ", ranks);
    ValidateTrainConfig(flags.config, static_cast<int>(ranks));
  });
  // A bad file is no bad usage.
  FindRates(flags.config, DeviceKind::kCpu, static_cast<int>(ranks));
  CheckOutputs({DumpOutput(flags.config.dump_ir_dir), {"--json", flags.json}},
               {{"--rates", flags.config.rates}});
  const TrainReport report = CheckUsage(
      [&] { return PlanReport(flags.config, static_cast<int>(ranks)); });
  if (!flags.json.empty()) WriteFile(flags.json, JsonText(ToJson(report)));
  if (!flags.quiet) std::printf("%s", DescribeReport(report).c_str());
  return 0;
}

}  // namespace plo
