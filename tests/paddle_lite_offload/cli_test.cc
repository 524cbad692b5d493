// Runs the plo executable: exit statuses, messages, files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "framework/ir/error.h"

namespace plo {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct CliResult {
  int status = -1;
  std::string output;
};

CliResult Plo(const std::string& args, const std::string& environment = "",
              const std::string& redirection = "2>&1") {
  const char* build = std::getenv("PLO_BINARY_DIR");
  const std::string command = environment + " " +
                              std::string(build ? build : "build") +
                              "/bin/plo " + args + " " + redirection;
  CliResult result;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    result.output.append(buffer, n);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.status = WEXITSTATUS(status);
  return result;
}

// The folder of one test.
std::string Scratch(const std::string& file) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string folder = ::testing::TempDir() + "/plo_cli_" + test->name();
  std::filesystem::create_directories(folder);
  return folder + "/" + file;
}

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

struct BadUse {
  const char* args;
  int status;
  const char* message;
  const char* environment = "";
};

class CliErrors : public ::testing::TestWithParam<BadUse> {};

TEST_P(CliErrors, SaysWhatIsWrong) {
  const BadUse& bad = GetParam();
  const CliResult result = Plo(bad.args, bad.environment);
  EXPECT_EQ(result.status, bad.status) << result.output;
  EXPECT_THAT(result.output, HasSubstr("error: "));
  EXPECT_THAT(result.output, HasSubstr(bad.message));
}

INSTANTIATE_TEST_SUITE_P(
    All, CliErrors,
    ::testing::Values(
        BadUse{"trian", 2, "unknown command 'trian'; did you mean 'train'?"},
        BadUse{"train --lyers=3", 2, "did you mean 'layers'?"},
        BadUse{"train extra", 2, "takes flags only, got 'extra'"},
        BadUse{"train --layers=abc", 2, "--layers=abc: expected an integer"},
        BadUse{"train --layers=99999999999999999999", 2, "fits 64 bits"},
        BadUse{"train --device_memory_limit=8GX", 2, "no number of bytes"},
        BadUse{"train --flagfile=no_such_file", 2, "No such file"},
        BadUse{"train --flagfile=/tmp", 2, "'/tmp': Is a directory"},
        BadUse{"train --device_memory_limit=0.5", 2, "no whole number"},
        BadUse{"train --device_memory_limit=-0", 2, "out of range"},
        BadUse{"train --model=gtp", 2, "InvalidArgument: --model=gtp"},
        BadUse{"train --hidden=128 --heads=3", 2, "does not divide"},
        BadUse{"train --sharding_stage=5", 2, "must be 0, 1, 2 or 3, got 5"},
        BadUse{"train --sharding_stage=3", 2,
               "Unimplemented: --sharding_stage"},
        BadUse{"train --offload_fraction=1.5", 2, "[0, 1], got 1.5"},
        BadUse{"train --offload=params", 2, "Unimplemented: --offload=params"},
        BadUse{"train --offload_activations=a", 2,
               "Unimplemented: --offload_a"},
        BadUse{"train --resume=x", 2, "Unimplemented: --resume"},
        BadUse{"train --save_dir=x", 2, "Unimplemented: --save_dir"},
        BadUse{"train --loss_scale=-1", 2,
               "--loss_scale must be in [2^-126, 2^126]"},
        BadUse{"train --loss_scale_growth=0.5", 2, "must be at least 1"},
        BadUse{"train --lr=nan", 2, "--lr=nan: expected a finite number"},
        BadUse{"train --momentum=nan", 2, "--momentum=nan: expected a finite"},
        BadUse{"train --lr=-1", 2, "--lr must be finite in fp32"},
        BadUse{"train --lr=1e39", 2, "in the range of fp32"},
        BadUse{"train --kv_heads=2 --model=mlp", 2, "has no effect without"},
        BadUse{"train --hidden=4611686018427387904 --heads=1", 2, "overflows"},
        BadUse{"train --freeze=layer9/*", 2, "matches no param"},
        BadUse{"train --nproc=2 --freeze=layer9/*", 2, "matches no param"},
        BadUse{"train --nproc=0", 2, "--nproc must be in [1, 1024]"},
        BadUse{"train --nproc=2", 2, "contradicts WORLD_SIZE=1",
               "WORLD_SIZE=1 RANK=0"},
        BadUse{"train --text=no_such_file", 1, "--text: no file"},
        BadUse{"train --text=/dev/null", 1, "--text: \"/dev/null\""},
        BadUse{"train --tokens=/tmp", 1, "--tokens: \"/tmp\" is a dir"},
        BadUse{"train --rates=no_such_file", 1, "--rates: cannot read 'no_su"},
        BadUse{"plan --rates=/tmp", 1, "--rates: cannot read '/tmp': Is a d"},
        BadUse{"plan --rates=README.md", 1, "is not a JSON object"},
        BadUse{"train --model=mlp --json=same --trace=./same", 2,
               "--json and --trace are both 'same'"},
        BadUse{"train --text=README.md --json=README.md", 2,
               "--json and --text are both"},
        BadUse{"train", 1, "MASTER_ADDR", "WORLD_SIZE=2 RANK=0"},
        BadUse{"train", 1, "WORLD_SIZE", "WORLD_SIZE=two"},
        BadUse{"plan --world_size=-1", 2, "--world_size must be in"},
        BadUse{"plan --bucket_mb=2e6", 2, "--bucket_mb must be at most"},
        BadUse{"plan --device_memory_limit=1KiB", 1, "OutOfMemory"},
        BadUse{"compare", 2, "needs --variants"},
        BadUse{"compare --variants=offload=none", 2, "not of the form NAME:"},
        BadUse{"compare --variants=a:x=1", 2,
               "variant 'a': unknown flag '--x'"},
        BadUse{"compare --variants='a:lr=1;a:lr=2'", 2, "named 'a'"},
        BadUse{"compare --variants='a;b:sharding_stage=5'", 2, "variant 'b'"},
        BadUse{"compare --variants='a;b:freeze=x'", 2, "variant 'b'"},
        BadUse{"compare --variants='a:json=x'", 2, "--json cannot vary"},
        BadUse{"compare --variants=$(printf 'a\\377')", 2, "not UTF-8"},
        BadUse{"compare --variants='a;b' --momentum=0.5", 2, "has no effect"},
        BadUse{"compare --variants='a;b:momentum=0.5'", 2, "has no effect"},
        BadUse{"compare --model=mlp --steps=1 --variants=a", 1, "TMPDIR",
               "TMPDIR=/no_such_dir"},
        BadUse{"help trian", 2, "did you mean 'train'?"},
        BadUse{"version now", 2, "takes flags only, got 'now'"},
        BadUse{"opt", 2, "takes one program file"},
        BadUse{"opt --format=x README.md", 2, "--format=x: expected one of"},
        BadUse{"opt --passes=no_such_pass README.md", 2, "no pass"},
        BadUse{"opt --passes='fuse_ops(x=1)' README.md", 2, "unknown option"},
        BadUse{"opt README.md", 1, "README.md"},
        BadUse{"opt /tmp", 1, "cannot read '/tmp': Is a directory"},
        BadUse{"opt - </tmp", 1, "Is a directory"},
        BadUse{"opt no_such_file", 1, "no_such_file"}));

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

TEST(Cli, CudaWithoutAGpu) {
  if (std::filesystem::exists("/dev/nvidia0")) {
    GTEST_SKIP() << "this machine has a GPU";
  }
  const CliResult result = Plo("train --device=cuda");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output, HasSubstr("error: FailedPrecondition: "));
}

TEST(Cli, TooShortTextIsAnError) {
  const std::string path = Scratch("short.txt");
  std::ofstream(path) << "too short";
  const CliResult result = Plo("train --text=" + path);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("InvalidArgument"), HasSubstr(path)));
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
