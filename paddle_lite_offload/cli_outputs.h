// The files that a command will write, checked before it starts to work.
#ifndef PLO_PADDLE_LITE_OFFLOAD_CLI_OUTPUTS_H_
#define PLO_PADDLE_LITE_OFFLOAD_CLI_OUTPUTS_H_

#include <string>
#include <vector>

#include "paddle_lite_offload/train_config.h"

namespace plo {

struct FlagPath {
  std::string flag;  // "--json"
  std::string path;  // empty when the flag is not given
  // The flag names the folder of this file, which is made.
  bool in_folder = false;
};

// Of --dump_ir_dir, which may be empty.
FlagPath DumpOutput(const std::string& dir);

// Of a rank: its trace; of rank 0 also the metrics log and the first dump.
std::vector<FlagPath> RunOutputs(const TrainConfig& config, int rank = 0);
std::vector<FlagPath> RunInputs(const TrainConfig& config);

// Throws, naming the flag, what writing the outputs would throw. UsageError
// when two of them are one file, or an output is an input.
void CheckOutputs(const std::vector<FlagPath>& outputs,
                  const std::vector<FlagPath>& inputs = {});

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_CLI_OUTPUTS_H_
