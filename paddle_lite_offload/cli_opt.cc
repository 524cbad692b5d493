// plo opt: runs passes on a stored program.
#include <algorithm>
#include <cstdio>
#include <iterator>

#include "framework/ir/file_io.h"
#include "framework/ir/program_text.h"
#include "framework/ir/verifier.h"
#include "operators/register_ops.h"
#include "paddle_lite_offload/cli.h"
#include "paddle_lite_offload/cli_flags.h"
#include "paddle_lite_offload/cli_outputs.h"
#include "passes/pass.h"
#include "passes/pipeline.h"

namespace plo {
namespace {

struct OptFlags {
  std::string passes;
  std::string output;
  std::string format = "text";
  std::string dump_ir_dir;
};

constexpr const char* kFormats[] = {"text", "proto", "prototext", "dot"};

std::string Print(const Program& program, const std::string& format) {
  if (format == "text") return PrintProgram(program);
  if (format == "dot") return ToGraphviz(program);
  return SerializeProto(program, /*text=*/format == "prototext");
}

Program Load(const std::string& path) {
  const bool standard = path == "-";
  Program program =
      standard ? ReadProgram(ReadStdin(), "standard input") : LoadProgram(path);
  try {
    Verify(program);
  } catch (const Error& error) {
    throw error.WithContext(standard ? "standard input" : path);
  }
  return program;
}

}  // namespace

int OptCommand(const CliArgs& args) {
  static OptFlags flags;  // gflags keeps pointers into it
  FlagSet set;
  set.Add("passes", &flags.passes, "for example append_backward,fuse_ops");
  set.Add("output", &flags.output, "file to write to instead of printing");
  set.Add("format", &flags.format, "text, proto, prototext or dot");
  set.Add("dump_ir_dir", &flags.dump_ir_dir,
          "folder of the program after each pass");
  const CliArgs inputs = set.Parse(args);
  if (set.asked_for_help()) {
    RegisterBuiltinPasses();
    std::string passes;
    for (const std::string& name : PassRegistry::Global().Names()) {
      passes += "  " + name + "\n";
    }
    std::printf(
        "usage: plo opt --passes=PIPELINE [--flag=value ...] FILE\n\n"
        "FILE is a program; - reads it from standard input.\n\n"
        "%s\npasses:\n%s",
        set.Help().c_str(), passes.c_str());
    return 0;
  }
  if (inputs.size() != 1) {
    throw UsageError("plo opt takes one program file (- for standard input)");
  }
  if (std::find(std::begin(kFormats), std::end(kFormats), flags.format) ==
      std::end(kFormats)) {
    throw UsageError("--format=" + flags.format +
                     ": expected one of text, proto, prototext, dot");
  }
  RegisterBuiltinOps();
  RegisterBuiltinPasses();
  PassManager manager =
      CheckUsage([] { return PassManager::Parse(flags.passes); });
  manager.set_dump_dir(flags.dump_ir_dir);
  CheckOutputs({DumpOutput(flags.dump_ir_dir), {"--output", flags.output}});
  Program program = Load(inputs[0]);
  // Options that do not fit this program are bad usage too.
  if (!flags.passes.empty() || !flags.dump_ir_dir.empty()) {
    CheckUsage([&] { manager.Run(program); });
  }
  const std::string printed = Print(program, flags.format);
  if (flags.output.empty()) {
    std::fwrite(printed.data(), 1, printed.size(), stdout);
  } else {
    WriteFile(flags.output, printed);
  }
  return 0;
}

}  // namespace plo
