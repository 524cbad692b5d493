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

namespace plo {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

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
        BadUse{"train --flagfile=no_such_file", 2, "cannot open the file"},
        BadUse{"train --model=gtp", 1, "InvalidArgument: --model=gtp"},
        BadUse{"train --hidden=128 --heads=3", 1, "does not divide"},
        BadUse{"train --sharding_stage=5", 1, "must be 0, 1, 2 or 3, got 5"},
        BadUse{"train --sharding_stage=3", 1,
               "Unimplemented: --sharding_stage"},
        BadUse{"train --offload_fraction=1.5", 1, "[0, 1], got 1.5"},
        BadUse{"train --offload=params", 1, "Unimplemented: --offload=params"},
        BadUse{"train --offload_activations=a", 1,
               "Unimplemented: --offload_a"},
        BadUse{"train --resume=x", 1, "Unimplemented: --resume"},
        BadUse{"train --save_dir=x", 1, "Unimplemented: --save_dir"},
        BadUse{"train --loss_scale=-1", 1, "--loss_scale must be a positive"},
        BadUse{"train --loss_scale_growth=0.5", 1, "must be at least 1"},
        BadUse{"train --lr=nan", 1, "lr must be a finite number"},
        BadUse{"train --lr=-1", 1, "lr must be a finite number"},
        BadUse{"train --hidden=4611686018427387904 --heads=1", 1, "overflows"},
        BadUse{"train --text=no_such_file", 1, "no_such_file"},
        BadUse{"train --text=/dev/null", 1, "/dev/null"},
        BadUse{"train --nproc=0", 1, "--nproc must be in [1, 1024]"},
        BadUse{"train --rates=no_such_file", 1, "no_such_file"},
        BadUse{"train --model=mlp --json=no_such_dir/x", 1, "no_such_dir/x"},
        BadUse{"train", 1, "MASTER_ADDR", "WORLD_SIZE=2 RANK=0"},
        BadUse{"train", 1, "WORLD_SIZE", "WORLD_SIZE=two"},
        BadUse{"plan --world_size=-1", 1, "--world_size must be in"},
        BadUse{"plan --device_memory_limit=1KiB", 1, "OutOfMemory"},
        BadUse{"compare", 2, "needs --variants"},
        BadUse{"compare --variants=offload=none", 2, "not of the form NAME:"},
        BadUse{"compare --variants=a:x=1", 2,
               "variant 'a': unknown flag '--x'"},
        BadUse{"compare --variants='a:lr=1;a:lr=2'", 2, "named 'a'"},
        BadUse{"compare --variants='a;b:sharding_stage=5'", 1, "variant 'b'"},
        BadUse{"opt", 2, "takes one program file"},
        BadUse{"opt no_such_file", 1, "no_such_file"}));

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
