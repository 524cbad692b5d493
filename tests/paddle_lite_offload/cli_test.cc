// Runs the plo executable: exit statuses, outputs, files. Bad input:
// cli_errors_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "framework/ir/error.h"
#include "tests/paddle_lite_offload/shell_plo.h"

namespace plo {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

const char kTiny[] =
    " --model=gpt --layers=1 --hidden=16 --heads=2 --seq_len=16 "
    "--micro_batch=2 --steps=3 --device=cpu";

TEST(Cli, HelpAndVersion) {
  EXPECT_THAT(Plo("help").output, HasSubstr("plo COMMAND --help"));
  EXPECT_EQ(Plo("help").status, 0);
  EXPECT_EQ(Plo("").status, 2);
  for (const char* command : {"train", "compare", "plan", "opt", "generate"}) {
    const CliResult help = Plo(std::string(command) + " --help");
    EXPECT_EQ(help.status, 0);
    EXPECT_THAT(help.output, HasSubstr(std::string("usage: plo ") + command));
  }
  EXPECT_THAT(Plo("train --help").output, HasSubstr("--sharding_stage=2"));
  EXPECT_EQ(Plo("help train").output, Plo("train --help").output);
  const CliResult version = Plo("--version");
  EXPECT_EQ(version.status, 0);
  EXPECT_THAT(version.output, AllOf(HasSubstr("(commit "), HasSubstr("oneDNN"),
                                    HasSubstr("protobuf")));
}

// A file that cannot be written is found before the work that it is for.
TEST(Cli, OutputsAreCheckedFirst) {
  const std::string file = Scratch("a_file");
  std::ofstream(file) << "x";
  const std::string mlp = " --model=mlp --steps=2 --device=cpu ";
  const std::pair<std::string, std::string> cases[] = {
      {"train --json=no_such_dir/x", "--json: cannot write 'no_such_dir/x'"},
      {"train --nproc=2 --json=no_such_dir/x", "--json: cannot write"},
      {"train --trace=/tmp", "--trace: cannot write '/tmp': Is a directory"},
      {"train --log_dir=" + file, "--log_dir: cannot make the folder"},
      {"train --dump_ir_dir=" + file, "--dump_ir_dir: cannot make the folder"},
      {"plan --dump_ir_dir=" + file, "--dump_ir_dir: cannot make the folder"},
      {"plan --json=no_such_dir/x", "--json: cannot write"},
      {"compare --variants=a --report=no_such_dir/x", "--report: cannot write"},
      {"compare --variants=a:trace=no_such_dir/x",
       "--trace of variant 'a': cannot write"},
  };
  for (const auto& [args, message] : cases) {
    const CliResult result = Plo(args + mlp);
    EXPECT_EQ(result.status, 1) << args;
    EXPECT_THAT(result.output, HasSubstr(": " + message));
    EXPECT_THAT(result.output, Not(HasSubstr("step 1/"))) << args;
    EXPECT_THAT(result.output, Not(HasSubstr("== a"))) << args;
    EXPECT_THAT(result.output, Not(HasSubstr("device peak"))) << args;
  }
  EXPECT_THAT(Plo("opt --output=no_such_dir/x no_such_file").output,
              HasSubstr("--output: cannot write"));
}

TEST(Cli, FullDiskKeepsTheOldReport) {
  const std::string path = Scratch("train.json");
  std::ofstream(path) << "old";
  const CliResult result =
      Plo("train --model=mlp --steps=2 --json=" + path, "ulimit -f 1;");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output, HasSubstr("error: Unavailable: cannot write '" +
                                       path + "': File too large"));
  std::string kept;
  std::ifstream(path) >> kept;
  EXPECT_EQ(kept, "old");
}

TEST(Cli, OutputThatDoesNotArriveIsAFailure) {
  for (const char* args : {"help", "--version", "plan --model=mlp"}) {
    for (const auto& [redirection, reason] :
         {std::pair("2>&1 >/dev/full", "No space left on device"),
          std::pair("2>&1 >&-", "Bad file descriptor")}) {
      const CliResult result = Plo(args, "", redirection);
      EXPECT_EQ(result.status, 1) << args;
      EXPECT_EQ(result.output,
                StrCat("error: Unavailable: cannot write the standard output: ",
                       reason, "\n"));
    }
  }
  EXPECT_EQ(Plo("plan --model=mlp --quiet", "", ">&-").status, 0);
}

TEST(Cli, ClosedStreamsAreNoFiles) {
  const std::string logs = Scratch("logs");
  const CliResult result = Plo(
      "train --model=mlp --steps=2 --quiet --log_dir=" + logs, "", "<&- 2>&-");
  EXPECT_EQ(result.status, 0);
  std::ifstream file(logs + "/metrics.jsonl");
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    EXPECT_TRUE(json::accept(line)) << line;
  }
  EXPECT_EQ(lines, 2);
}

TEST(Cli, BytesThatAreNoTextBecomeText) {
  const std::string path = Scratch("train.json");
  const CliResult result =
      Plo("train" + std::string(kTiny) + " --generate=1 --json=" + path +
          " --prompt=$(printf 'a\\377b')");
  ASSERT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(ReadJson(path)["config"]["prompt"], "a\uFFFDb");
  EXPECT_EQ(
      Plo("plan --model=mlp --trace=$(printf '\\377') --json=" + path).status,
      0);
  EXPECT_EQ(ReadJson(path)["config"]["trace"], "\uFFFD");
}

TEST(Cli, DivergenceIsSaid) {
  const CliResult result = Plo("train --model=mlp --steps=3 --lr=1e30 --quiet");
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.output, HasSubstr("warning: the last loss is "));
  EXPECT_THAT(Plo("train --model=mlp --steps=1 --quiet").output,
              Not(HasSubstr("warning")));
}

TEST(Cli, TrainWritesTheReport) {
  const std::string path = Scratch("train.json");
  const CliResult result = Plo("train" + std::string(kTiny) + " --nproc=2 " +
                               "--offload=optimizer --json=" + path);
  ASSERT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("param digest"));
  const json report = ReadJson(path);
  EXPECT_EQ(report["world_size"], 2);
  EXPECT_EQ(report["device"], "cpu");
  EXPECT_EQ(report["losses"].size(), 3u);
  EXPECT_EQ(report["config"]["hidden"], 16);
  const json& device = report["memory"]["device"];
  EXPECT_EQ(device["planned_peak_bytes"], device["measured_peak_bytes"]);
  EXPECT_EQ(device["by_category"]["optimizer_state"], 0);
}

TEST(Cli, FlagFile) {
  const std::string flags = Scratch("flags.txt");
  std::ofstream(flags) << "# a small model\n--model=mlp\n--steps=2\n";
  const std::string path = Scratch("train.json");
  ASSERT_EQ(Plo("train --flagfile=" + flags + " --json=" + path).status, 0);
  EXPECT_EQ(ReadJson(path)["losses"].size(), 2u);
}

TEST(Cli, CompareShowsEqualBits) {
  const std::string path = Scratch("compare.json");
  const std::string html = Scratch("compare.html");
  const CliResult result =
      Plo("compare" + std::string(kTiny) + " --nproc=2 --variants='base:" +
          "offload=none;sync:offload=optimizer,offload_mode=sync;s0:" +
          "sharding_stage=0;lr:lr=0.1' --json=" + path + " --report=" + html);
  ASSERT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("equal bits"));
  const json comparison = ReadJson(path);
  const json& variants = comparison["variants"];
  ASSERT_EQ(variants.size(), 4u);
  for (int i : {1, 2}) {
    EXPECT_EQ(variants[i]["losses"], variants[0]["losses"]);
    EXPECT_EQ(variants[i]["param_digest"], variants[0]["param_digest"]);
  }
  EXPECT_NE(variants[3]["param_digest"], variants[0]["param_digest"]);
  EXPECT_GT(comparison["device_peak_saving_ratio"]["sync"], 0.1);
  EXPECT_TRUE(std::filesystem::exists(html));
}

TEST(Cli, CompareGivesEachVariantItsOutputs) {
  const std::string logs = Scratch("logs");
  const std::string trace = Scratch("trace.json");
  const CliResult result =
      Plo("compare --device=cpu --model=mlp --steps=2 --nproc=2 "
          "--variants='a;x/y:steps=3' "
          "--log_dir=" +
          logs + " --trace=" + trace + " --dump_ir_dir=" + logs);
  ASSERT_EQ(result.status, 0) << result.output;
  for (const auto& [name, steps] : {std::pair("a", 2), std::pair("x%2Fy", 3)}) {
    std::ifstream metrics(logs + "/" + name + "/metrics.jsonl");
    int lines = 0;
    for (std::string line; std::getline(metrics, line);) ++lines;
    EXPECT_EQ(lines, steps);
    EXPECT_TRUE(std::filesystem::exists(logs + "/" + name + "/00_input.txt"));
    const std::string own = Scratch(StrCat("trace.", name, ".json"));
    EXPECT_TRUE(std::filesystem::exists(own)) << own;
    EXPECT_TRUE(std::filesystem::exists(own + ".rank1"));
  }
  EXPECT_FALSE(std::filesystem::exists(trace));
}

TEST(Cli, CompareSaysWhyAVariantFails) {
  const std::string path = Scratch("compare.json");
  const CliResult result =
      Plo("compare --model=mlp --steps=2 --quiet --json=" + path +
          " --variants='a;small:device_memory_limit=1KiB'");
  EXPECT_EQ(result.status, 1);
  const json variants = ReadJson(path)["variants"];
  EXPECT_EQ(variants[0]["losses"].size(), 2u);
  EXPECT_THAT(variants[1]["error"].get<std::string>(),
              HasSubstr("OutOfMemory: the plan needs"));
  // An error that only the worker meets.
  const CliResult late =
      Plo("compare --variants=a --model=mlp --steps=2", "ulimit -f 1;");
  EXPECT_EQ(late.status, 1);
  EXPECT_THAT(late.output, HasSubstr("  failed: Unavailable: cannot write"));
}

TEST(Cli, CompareLeavesOutWhatHasNoEffect) {
  const std::string path = Scratch("compare.json");
  const CliResult result =
      Plo("compare --model=mlp --steps=2 --offload_mode=sync --quiet --json=" +
          path + " --variants='a;b:offload=optimizer'");
  ASSERT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output, Not(HasSubstr("equal bits")));
  const json variants = ReadJson(path)["variants"];
  EXPECT_EQ(variants[0]["config"]["offload_mode"], "overlap");
  EXPECT_EQ(variants[1]["config"]["offload_mode"], "sync");
}

TEST(Cli, CompareShowsSamplesAfterTheTable) {
  const CliResult result = Plo("compare" + std::string(kTiny) +
                                   " --generate=2 --prompt=ab --variants='v;w'",
                               "", "2>/dev/null");
  ASSERT_EQ(result.status, 0);
  const size_t table = result.output.find("equal bits");
  EXPECT_EQ(result.output.find("variant"), 0u);
  EXPECT_LT(table, result.output.find("sample of v:\nab"));
  EXPECT_LT(table, result.output.find("sample of w:\nab"));
}

TEST(Cli, PlanNeedsNoModelMemory) {
  const std::string path = Scratch("plan.json");
  const CliResult result =
      Plo("plan --model=gpt --layers=18 --hidden=2048 --heads=16 "
          "--seq_len=1024 --vocab_size=50304 --micro_batch=4 --world_size=2 "
          "--dtype=bf16 --sharding_stage=2 --offload=optimizer --json=" +
          path);
  ASSERT_EQ(result.status, 0) << result.output;
  const json plan = ReadJson(path);
  EXPECT_GT(plan["parameters"], 1000000000);
  EXPECT_EQ(plan["world_size"], 2);
  EXPECT_FALSE(plan.contains("losses"));
  EXPECT_FALSE(plan.contains("param_digest"));
  EXPECT_GT(plan["transfers"]["d2h_bytes_per_step"], 1000000000);
}

TEST(Cli, OptRunsPasses) {
  const std::string dumps = Scratch("dumps");
  ASSERT_EQ(Plo("plan --model=mlp --dump_ir_dir=" + dumps).status, 0);
  const CliResult result =
      Plo("opt --passes='append_backward' " + dumps + "/00_input.txt");
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.output, HasSubstr("@grad"));
  const std::string file = Scratch("out.pb");
  EXPECT_EQ(
      Plo("opt --format=proto --output=" + file + " " + dumps + "/00_input.txt")
          .status,
      0);
  EXPECT_EQ(Plo("opt " + file).output,
            Plo("opt - < " + dumps + "/00_input.txt").output);
}

TEST(Cli, GeneratePrintsOnlyTheSample) {
  const CliResult result =
      Plo("generate" + std::string(kTiny) + " --generate=12 --prompt=ab", "",
          "2>/dev/null");
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.output.substr(0, 2), "ab");
  EXPECT_EQ(result.output.size(), 15u);  // and a line break
}

}  // namespace
}  // namespace plo
