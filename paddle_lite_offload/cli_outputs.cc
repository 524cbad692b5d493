#include "paddle_lite_offload/cli_outputs.h"

#include <filesystem>
#include <map>

#include "framework/ir/file_io.h"
#include "paddle_lite_offload/cli_flags.h"
#include "paddle_lite_offload/metrics_log.h"
#include "paddle_lite_offload/trainer.h"

namespace plo {
namespace {

// The same for all names of a file; empty for devices and pipes, which may
// well be written twice.
std::string Identity(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) &&
      !std::filesystem::is_regular_file(status)) {
    return "";
  }
  // Absolute first: a relative name of a file that is not there stays as it is.
  const auto absolute = std::filesystem::absolute(path, error);
  if (error) return path;
  const auto canonical = std::filesystem::weakly_canonical(absolute, error);
  return error ? path : canonical.string();
}

}  // namespace

FlagPath DumpOutput(const std::string& dir) {
  return {"--dump_ir_dir", dir.empty() ? "" : dir + "/00_input.txt", true};
}

std::vector<FlagPath> RunOutputs(const TrainConfig& c, int rank) {
  std::vector<FlagPath> outputs;
  if (!c.trace.empty())
    outputs.push_back({"--trace", TracePath(c.trace, rank)});
  if (rank != 0) return outputs;
  if (!c.log_dir.empty()) {
    outputs.push_back({"--log_dir", MetricsPath(c.log_dir), true});
  }
  outputs.push_back(DumpOutput(c.dump_ir_dir));
  return outputs;
}

std::vector<FlagPath> RunInputs(const TrainConfig& c) {
  return {{"--text", c.text}, {"--tokens", c.tokens}, {"--rates", c.rates}};
}

void CheckOutputs(const std::vector<FlagPath>& outputs,
                  const std::vector<FlagPath>& inputs) {
  std::map<std::string, std::string> taken;  // identity, flag
  for (const FlagPath& input : inputs) {
    if (!input.path.empty()) taken.emplace(Identity(input.path), input.flag);
  }
  for (const FlagPath& output : outputs) {
    if (output.path.empty()) continue;
    const std::string identity = Identity(output.path);
    const auto [other, fresh] = taken.emplace(identity, output.flag);
    if (!fresh && !identity.empty()) {
      throw UsageError(StrCat(output.flag, " and ", other->second,
                              " are both '", output.path, "'"));
    }
  }
  for (const FlagPath& output : outputs) {
    if (output.path.empty()) continue;
    try {
      if (output.in_folder) {
        MakeFolder(std::filesystem::path(output.path).parent_path().string());
      }
      CheckWritable(output.path);
    } catch (const Error& error) {
      throw error.WithContext(output.flag);
    }
  }
}

}  // namespace plo
