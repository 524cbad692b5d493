// Runs the plo executable on bad input: each has an exit status (2 for bad use)
// and a message that says what is wrong with what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "framework/ir/error.h"
#include "tests/paddle_lite_offload/shell_plo.h"

namespace plo {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

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
        BadUse{"train --lyers=3", 2,
               "unknown flag '--lyers'; did you mean 'layers'?"},
        BadUse{"train --nope", 2, "unknown flag '--nope'"},
        BadUse{"train extra", 2, "takes flags only, got 'extra'"},
        BadUse{"train --layers=abc", 2,
               "--layers=abc: expected an integer that fits 64 bits"},
        BadUse{"train --layers=99999999999999999999", 2,
               "--layers=99999999999999999999: expected an integer that fits "
               "64 bits"},
        BadUse{"train --device_memory_limit=8GX", 2,
               "--device_memory_limit: '8GX' is no number of bytes; write "
               "512MiB or 8GiB"},
        BadUse{"plan --host_memory_limit=", 2,
               "--host_memory_limit: '' is no number of bytes"},
        BadUse{"plan --host_memory_limit=1e30GiB", 2,
               "--host_memory_limit: '1e30GiB' is out of range for a number of "
               "bytes"},
        BadUse{"train --flagfile=no_such_file", 2, "No such file"},
        BadUse{"train --flagfile=/tmp", 2, "'/tmp': Is a directory"},
        BadUse{"train --device_memory_limit=0.5", 2,
               "'0.5' is no whole number of bytes"},
        BadUse{"train --device_memory_limit=-0", 2,
               "'-0' is out of range for a number of bytes"},
        BadUse{"train --model=gtp", 2,
               "InvalidArgument: --model=gtp: expected one of mlp, gpt"},
        BadUse{"train --hidden=128 --heads=3", 2,
               "--heads=3 does not divide --hidden=128"},
        BadUse{"plan --heads=0", 2, "--heads must be at least 1, got 0"},
        BadUse{"plan --hidden=-1", 2, "--hidden must be at least 1, got -1"},
        BadUse{"plan --kv_heads=3", 2,
               "--kv_heads=3 does not divide --heads=4"},
        BadUse{"train --sharding_stage=5", 2,
               "--sharding_stage must be 0, 1, 2 or 3, got 5"},
        BadUse{"train --sharding_stage=3", 2,
               "Unimplemented: --sharding_stage"},
        BadUse{"train --offload_fraction=1.5", 2,
               "--offload_fraction must be in [0, 1], got 1.5"},
        BadUse{"train --offload=params", 2, "Unimplemented: --offload=params"},
        BadUse{"train --offload_activations=a", 2,
               "Unimplemented: --offload_a"},
        BadUse{"train --resume=x", 2, "Unimplemented: --resume"},
        BadUse{"train --save_dir=x", 2, "Unimplemented: --save_dir"},
        BadUse{"train --loss_scale=-1", 2,
               "--loss_scale must be in [2^-126, 2^126], got -1"},
        BadUse{"plan --loss_scale=0", 2,
               "--loss_scale must be in [2^-126, 2^126], got 0"},
        BadUse{"train --init_loss_scale=0 --dtype=fp16", 2,
               "--init_loss_scale must be in [2^-126, 2^126], got 0"},
        BadUse{"train --loss_scale_growth=0.5", 2,
               "--loss_scale_growth must be at least 1, got 0.5"},
        BadUse{"train --lr=nan", 2, "--lr=nan: expected a finite number"},
        BadUse{"train --momentum=nan", 2,
               "--momentum=nan: expected a finite number"},
        BadUse{"train --lr=-1", 2,
               "--lr must be finite in fp32 and not negative, got -1"},
        BadUse{"train --lr=1e39", 2,
               "--lr must be a finite number in the range of fp32, got 1e+39"},
        BadUse{"train --lr=1e400", 2,
               "--lr=1e400: expected a number that fits 64 bits"},
        BadUse{"plan --lr=inf", 2, "--lr=inf: expected a finite number"},
        BadUse{"train --kv_heads=2 --model=mlp", 2,
               "--kv_heads has no effect without --model=gpt"},
        BadUse{"train --hidden=4611686018427387904 --heads=1", 2,
               "params overflows: --layers=4 --hidden=4611686018427387904 "},
        BadUse{"plan --micro_batch=9223372036854775807", 2,
               "the number of tokens of the run overflows: --steps=100 "
               "--micro_batch=9223372036854775807"},
        BadUse{"generate --generate=9223372036854775807", 2,
               "--generate must be in [0, 1048576], got 9223372036854775807"},
        BadUse{"train --freeze=layer9/*", 2, "matches no param"},
        BadUse{"train --nproc=2 --freeze=layer9/*", 2, "matches no param"},
        BadUse{"train --nproc=0", 2, "--nproc must be in [1, 1024]"},
        BadUse{"train --nproc=2", 2, "contradicts WORLD_SIZE=1",
               "WORLD_SIZE=1 RANK=0"},
        BadUse{"train --text=no_such_file", 1,
               "--text: no file \"no_such_file\""},
        BadUse{"train --text=/dev/null", 1,
               "InvalidArgument: --text: \"/dev/null\" is not a regular file"},
        BadUse{"train --text=/tmp", 1, "--text: \"/tmp\" is a directory"},
        BadUse{"train --tokens=/tmp", 1, "--tokens: \"/tmp\" is a directory"},
        BadUse{"train --rates=no_such_file", 1,
               "--rates: cannot read 'no_such_file': No such file"},
        BadUse{"plan --rates=/tmp", 1,
               "--rates: cannot read '/tmp': Is a directory"},
        BadUse{"plan --rates=README.md", 1, "is not a JSON object"},
        BadUse{"train --model=mlp --json=same --trace=./same", 2,
               "--json and --trace are both 'same'"},
        BadUse{"train --text=README.md --json=README.md", 2,
               "--json and --text are both"},
        BadUse{"train", 1, "MASTER_ADDR is not set, but WORLD_SIZE is 2",
               "WORLD_SIZE=2 RANK=0"},
        BadUse{"train", 1, "RANK is not set, but WORLD_SIZE is",
               "WORLD_SIZE=2 MASTER_ADDR=localhost"},
        BadUse{"train", 1, "MASTER_PORT is 99999, expected 1 to 65535",
               "WORLD_SIZE=2 RANK=0 MASTER_ADDR=localhost MASTER_PORT=99999"},
        BadUse{"train", 1, "RANK is 2, expected 0 to 1",
               "WORLD_SIZE=2 RANK=2 MASTER_ADDR=localhost MASTER_PORT=2222"},
        BadUse{"train", 1, "WORLD_SIZE is \"two\", expected an integer",
               "WORLD_SIZE=two RANK=0"},
        BadUse{"plan --world_size=-1", 2,
               "--world_size must be in [1, 1048576], got -1"},
        BadUse{"plan --bucket_mb=2e6", 2, "--bucket_mb must be at most"},
        BadUse{"compare", 2, "needs --variants"},
        BadUse{"compare --variants=offload=none", 2, "not of the form NAME:"},
        BadUse{"compare --variants=a:x=1", 2,
               "variant 'a': unknown flag '--x'"},
        BadUse{"compare --variants='a:lr=1;a:lr=2'", 2, "named 'a'"},
        BadUse{"compare --variants='a;b:sharding_stage=5'", 2,
               "variant 'b': InvalidArgument: --sharding_stage must be"},
        BadUse{"compare --variants='a;b:freeze=x'", 2,
               "variant 'b': InvalidArgument: --freeze=x"},
        BadUse{"compare --variants='a;b:lr=nan'", 2,
               "variant 'b': --lr=nan: expected a finite number"},
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
        BadUse{"opt --passes=no_such_pass README.md", 2,
               "no pass 'no_such_pass'"},
        BadUse{"opt --passes='clip_gradients(norm=nan)' README.md", 2,
               "option norm=nan is not a finite number"},
        BadUse{"opt --passes='shard_optimizer(stage=5,degree=2)' README.md", 2,
               "stage must be 0, 1, 2 or 3, got 5"},
        BadUse{"opt --passes='fuse_ops(x=1)' README.md", 2,
               "fuse_ops: unknown option 'x'"},
        BadUse{"opt README.md", 1,
               "InvalidArgument: README.md: program text, line 1, column 1: "
               "expected program"},
        BadUse{"opt /tmp", 1, "cannot read '/tmp': Is a directory"},
        BadUse{"opt - </tmp", 1, "Is a directory"},
        BadUse{"opt no_such_file", 1,
               "cannot read 'no_such_file': No such file"}));

TEST(CliErrorsTest, CudaWithoutAGpu) {
  if (std::filesystem::exists("/dev/nvidia0")) {
    GTEST_SKIP() << "this machine has a GPU";
  }
  const CliResult one = Plo("train --device=cuda");
  EXPECT_EQ(one.status, 1);
  EXPECT_THAT(one.output, HasSubstr("error: FailedPrecondition: CUDA device 0 "
                                    "asked for, but there is no GPU"));
  const CliResult two = Plo("train --device=cuda --nproc=2");
  EXPECT_EQ(two.status, 1);
  EXPECT_THAT(two.output,
              HasSubstr("error: FailedPrecondition: rank 1 asks for "
                        "NCCL, but there is no GPU"));
}

TEST(CliErrorsTest, DataFilesAreNamedWithTheReason) {
  const std::string path = Scratch("data");
  const std::string named = "\"" + path + "\" ";
  const std::tuple<const char*, const char*, std::string> cases[] = {
      {"", "--text=", named + "is empty"},
      {"a", "--text=", named + "has 1 tokens, fewer than seq_len + 1 = 129"},
      {"a", "--nproc=2 --text=",
       named + "has 1 tokens, fewer than seq_len + 1 = 129"},
      {"abc", "--tokens=",
       named + "has 3 bytes, which is no whole number of 2-byte tokens"},
      {"0123456789", "--seq_len=4 --tokens=",
       "token id 12592 at position 0 of " + named + "is out of range [0, 256)"},
  };
  for (const auto& [content, flags, message] : cases) {
    std::ofstream(path) << content;
    const CliResult result = Plo(StrCat("train ", flags, path));
    EXPECT_EQ(result.status, 1) << flags;
    EXPECT_THAT(result.output, StartsWith("error: InvalidArgument: --t"));
    EXPECT_THAT(result.output, HasSubstr(message));
  }
}

TEST(CliErrorsTest, ProgramFilesAreNamedWithTheReason) {
  const std::string folder = Scratch("");
  ASSERT_EQ(Plo("plan --model=mlp --quiet --dump_ir_dir=" + folder).status, 0);
  const std::string text = folder + "/00_input.txt";
  const std::string proto = folder + "/p.pb";
  ASSERT_EQ(Plo("opt --format=proto --output=" + proto + " " + text).status, 0);
  const auto read = [](const std::string& path) {
    std::ostringstream bytes;
    bytes << std::ifstream(path, std::ios::binary).rdbuf();
    return bytes.str();
  };
  const std::string bytes = read(proto);
  std::string newer = bytes, flipped = bytes, shape = read(text);
  newer[14] = 2;
  flipped[bytes.size() / 2] ^= 4;
  shape.replace(shape.find("fp32[8, 16]"), 11, "fp32[8, 15]");
  const std::pair<std::string, const char*> cases[] = {
      {"", "DataLoss: BAD: the program file is empty"},
      {bytes.substr(0, 10), "DataLoss: BAD: corrupt program file: neither"},
      {bytes.substr(0, 500),
       "DataLoss: BAD: corrupt program file: not a valid "
       "protobuf message of 500 bytes"},
      {flipped, "DataLoss: BAD: corrupt program file: "},
      {newer,
       "FailedPrecondition: BAD: the program file has version 2, this "
       "build reads up to version 1"},
      {shape.substr(0, 300), "InvalidArgument: BAD: program text, line "},
      // Shapes that do not match: the op, the vars and their shapes.
      {shape,
       "InvalidArgument: BAD: op 'matmul' #2 (layer0/fc, built at "
       "models.cc:"},
      {shape,
       "inner dimensions 15 and 16 (x = fp32 [8, 15] 'x', y = fp32 "
       "[16, 128] 'layer0/fc/weight'"},
  };
  const std::string bad = folder + "/bad";
  for (const auto& [content, wanted] : cases) {
    std::ofstream(bad, std::ios::binary) << content;
    for (const std::string& name : {bad, std::string("standard input")}) {
      const CliResult result = Plo("opt " + (name == bad ? bad : "- <" + bad));
      std::string message = wanted;
      if (const size_t at = message.find("BAD"); at != std::string::npos) {
        message.replace(at, 3, name);
      }
      EXPECT_EQ(result.status, 1);
      EXPECT_THAT(result.output, HasSubstr(message));
    }
  }
}

// The number after `words` in `text`.
int64_t NumberAfter(const std::string& words, const std::string& text) {
  const size_t at = text.find(words);
  return at == std::string::npos ? -1
                                 : std::atoll(text.c_str() + at + words.size());
}

TEST(CliErrorsTest, InfeasibleLimitsNameTheLeastThatWorks) {
  for (const std::string command : {"train", "plan"}) {
    for (const std::string place : {"device", "host"}) {
      const std::string run = command + " --model=mlp --device=cpu --steps=1 " +
                              "--offload=optimizer --" + place +
                              "_memory_limit=";
      const CliResult result = Plo(run + "1KiB");
      EXPECT_EQ(result.status, 1);
      EXPECT_THAT(result.output,
                  StartsWith("error: OutOfMemory: the plan needs "));
      const int64_t needs = NumberAfter("plan needs ", result.output);
      EXPECT_THAT(result.output,
                  HasSubstr(StrCat(" memory, ", needs - 1024, " bytes (")));
      EXPECT_THAT(result.output,
                  HasSubstr("more than the limit of 1024 bytes"));
      EXPECT_THAT(result.output, HasSubstr("largest live tensors: '"));
      const int64_t least = NumberAfter(StrCat("smallest ", place,
                                               "_memory_limit that would do "
                                               "is "),
                                        result.output);
      EXPECT_EQ(Plo(run + std::to_string(least)).status, 0);
      EXPECT_EQ(Plo(run + std::to_string(least - 1)).status, 1);
    }
  }
}

}  // namespace
}  // namespace plo
