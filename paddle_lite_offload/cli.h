// The commands of `plo`. Each takes the arguments after its name and returns
// the exit status: 0 ok, 1 failure, 2 bad usage. They may throw plo::Error
// (status 1) and UsageError (status 2); main prints those.
#ifndef PLO_PADDLE_LITE_OFFLOAD_CLI_H_
#define PLO_PADDLE_LITE_OFFLOAD_CLI_H_

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "framework/runtime/comm.h"
#include "paddle_lite_offload/train_config.h"
#include "paddle_lite_offload/train_report.h"

namespace plo {

using CliArgs = std::vector<std::string>;

int TrainCommand(const CliArgs& args);
// Trains, then prints the sampled bytes and nothing else.
int GenerateCommand(const CliArgs& args);
int CompareCommand(const CliArgs& args);
int PlanCommand(const CliArgs& args);
int OptCommand(const CliArgs& args);
int CalibrateCommand(const CliArgs& args);

// Runs the command of `args` (without the program's name).
int CliMain(const CliArgs& args);

// Throws UsageError unless there are none.
void RejectPositional(const std::string& command, const CliArgs& positional);

// Throws UsageError unless --nproc is a number of ranks for one machine.
int LocalRanks(int64_t nproc);

// True in a process that a launcher started for one rank.
bool IsWorker();

// The comm of the ranks that were launched; null for one rank.
std::unique_ptr<Comm> ConnectRanks(DeviceKind device, const LaunchInfo& info);

// Finds what is wrong with a run before it starts. Throws UsageError for flags,
// Error for files, and OutOfMemory for a limit that cannot be met.
void CheckRun(const TrainConfig& config, int world_size);

// Memory, transfers and time of a report in words, for a terminal.
std::string DescribeReport(const TrainReport& report);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_CLI_H_
