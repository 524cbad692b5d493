#include "paddle_lite_offload/cli.h"

#include <oneapi/dnnl/dnnl_version.h>

#include <cstdio>

#include "framework/ir/spelling.h"
#include "paddle_lite_offload/cli_flags.h"
#include "plo_version.h"

namespace plo {
namespace {

struct Command {
  const char* name;
  int (*run)(const CliArgs& args);
  const char* help;
};

constexpr Command kCommands[] = {
    {"train", TrainCommand, "train a model and report memory and speed"},
    {"compare", CompareCommand,
     "train variants of a model and compare memory, speed and bits"},
    {"plan", PlanCommand, "peak memory and step time without training"},
    {"calibrate", CalibrateCommand,
     "measure what this machine does per second"},
    {"opt", OptCommand, "run passes on a program in text form"},
    {"generate", GenerateCommand, "train a model, then sample from it"},
};

void PrintHelp(std::FILE* out) {
  std::fprintf(out,
               "plo trains models that do not fit the memory of the device.\n\n"
               "usage: plo COMMAND [--flag=value ...]\n\n");
  for (const Command& command : kCommands) {
    std::fprintf(out, "  %-10s %s\n", command.name, command.help);
  }
  std::fprintf(out,
               "  %-10s %s\n\n"
               "plo COMMAND --help lists the flags of a command, plo --version "
               "the versions.\n--flagfile=FILE reads flags from a file, one a "
               "line.\n",
               "help", "this text");
}

void PrintVersion() {
  std::printf("plo %s (commit %s)\n%soneDNN %d.%d.%d\n", PLO_VERSION,
              PLO_COMMIT, PLO_LIBRARY_VERSIONS, DNNL_VERSION_MAJOR,
              DNNL_VERSION_MINOR, DNNL_VERSION_PATCH);
}

const Command& FindCommand(const std::string& name) {
  std::vector<std::string> names = {"help"};
  for (const Command& command : kCommands) {
    if (name == command.name) return command;
    names.push_back(command.name);
  }
  throw UsageError("unknown command '" + name + "'" + DidYouMean(name, names) +
                   " (plo help lists the commands)");
}

}  // namespace

void RejectPositional(const std::string& command, const CliArgs& positional) {
  if (positional.empty()) return;
  throw UsageError("plo " + command + " takes flags only, got '" +
                   positional[0] + "'");
}

int CliMain(const CliArgs& args) {
  if (args.empty()) {
    PrintHelp(stderr);
    return 2;
  }
  const std::string& name = args[0];
  CliArgs rest(args.begin() + 1, args.end());
  if (name == "help" || name == "--help" || name == "-h") {
    if (rest.empty()) {
      PrintHelp(stdout);
      return 0;
    }
    CliArgs more(rest.begin() + 1, rest.end());
    RejectPositional("help " + rest[0], more);
    return FindCommand(rest[0]).run({"--help"});
  }
  if (name == "--version" || name == "version") {
    RejectPositional("version", rest);
    PrintVersion();
    return 0;
  }
  return FindCommand(name).run(rest);
}

}  // namespace plo
