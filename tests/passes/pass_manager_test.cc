#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <mutex>

#include "framework/ir/program_text.h"
#include "passes/pass.h"

namespace plo {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Does to the program what its name says.
class TestPass : public Pass {
 public:
  TestPass(std::string name, std::function<bool(Program&)> run)
      : name_(std::move(name)), run_(std::move(run)) {}
  std::string_view name() const override { return name_; }
  bool Run(Program& program) override { return run_(program); }

 private:
  std::string name_;
  std::function<bool(Program&)> run_;
};

void RegisterTestPass(const std::string& name,
                      const std::function<bool(Program&)>& run) {
  PassRegistry::Global().Register(name, [=](PassOptions& options) {
    options.Int("by", 0);
    return std::make_unique<TestPass>(name, run);
  });
}

class PassManagerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    static std::once_flag once;  // suites derived from this one call it too
    std::call_once(once, RegisterAll);
  }

  static void RegisterAll() {
    RegisterTestPass("test_change", [](Program& program) {
      ++program.seed;
      return true;
    });
    RegisterTestPass("test_keep", [](Program&) { return false; });
    RegisterTestPass("test_deny_change", [](Program& program) {
      ++program.seed;
      return false;
    });
    RegisterTestPass("test_claim_change", [](Program&) { return true; });
    RegisterTestPass("test_break", [](Program& program) {
      program.loss = 12;
      return true;
    });
    RegisterTestPass("test_throw", [](Program&) -> bool {
      PLO_THROW(kUnimplemented, "not today");
    });
  }

  static Error RunError(const std::string& pipeline) {
    Program program;
    try {
      PassManager::Parse(pipeline).Run(program);
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorCode::kInternal, "no error");
  }
};

TEST_F(PassManagerTest, RecordsEachEntry) {
  PassManager manager =
      PassManager::Parse("test_change , test_keep,test_change( by = 2 )");
  Program program;
  manager.Run(program);
  EXPECT_EQ(program.seed, 2);
  EXPECT_THAT(program.applied_passes,
              ElementsAre("test_change", "test_keep", "test_change( by = 2 )"));
  ASSERT_EQ(manager.records().size(), 3u);
  EXPECT_TRUE(manager.records()[0].changed);
  EXPECT_FALSE(manager.records()[1].changed);
  EXPECT_EQ(manager.records()[1].text, "test_keep");
}

TEST_F(PassManagerTest, EmptyPipelineDoesNothing) {
  for (const char* text : {"", "  \n"}) {
    Program program;
    PassManager manager = PassManager::Parse(text);
    manager.Run(program);
    EXPECT_TRUE(manager.records().empty());
  }
}

TEST_F(PassManagerTest, CatchesPassesThatLieAboutChanges) {
  const Error denied = RunError("test_keep,test_deny_change");
  EXPECT_EQ(denied.code(), ErrorCode::kInternal);
  EXPECT_EQ(denied.message(),
            "while running test_deny_change: the pass reports no change, but "
            "the program changed");
  const Error claimed = RunError("test_claim_change");
  EXPECT_EQ(claimed.code(), ErrorCode::kInternal);
  EXPECT_THAT(claimed.message(), HasSubstr("the pass reports a change"));
}

TEST_F(PassManagerTest, VerifiesAfterEachPass) {
  const Error error = RunError("test_change,test_break(by=1),test_keep");
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.message(),
            "while running test_break(by=1): loss is the unknown var id 12");
}

TEST_F(PassManagerTest, ErrorsKeepTheirCode) {
  const Error error = RunError("test_throw");
  EXPECT_EQ(error.code(), ErrorCode::kUnimplemented);
  EXPECT_EQ(error.message(), "while running test_throw: not today");
}

TEST_F(PassManagerTest, DumpsEachStage) {
  const std::string dir =
      testing::TempDir() + "plo_dump_" + std::to_string(getpid());
  PassManager manager = PassManager::Parse("test_change,test_keep");
  manager.set_dump_dir(dir + "/ir");
  Program program;
  manager.Run(program);
  EXPECT_EQ(LoadProgram(dir + "/ir/00_input.txt").seed, 0);
  EXPECT_EQ(LoadProgram(dir + "/ir/01_test_change.txt").seed, 1);
  EXPECT_EQ(PrintProgram(LoadProgram(dir + "/ir/02_test_keep.txt")),
            PrintProgram(program));
  std::filesystem::remove_all(dir);
}

struct BadPipeline {
  const char* name;
  const char* text;
  const char* message;
};

class BadPipelineTest : public PassManagerTest,
                        public testing::WithParamInterface<BadPipeline> {};

TEST_P(BadPipelineTest, NamesTheEntry) {
  try {
    PassManager::Parse(GetParam().text);
    FAIL() << "parsed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadPipelineTest,
    testing::Values(
        BadPipeline{"unknown", "test_keep,test_kep",
                    "pipeline entry 'test_kep': no pass 'test_kep'"},
        BadPipeline{"empty_entry", "test_keep,,test_keep",
                    "has an entry without a pass name"},
        BadPipeline{"option", "test_keep(to=1)",
                    "pipeline entry 'test_keep(to=1)': test_keep: unknown "
                    "option 'to'"},
        BadPipeline{"no_value", "test_keep(by)", "expected key=value"},
        BadPipeline{"not_int", "test_keep(by=1.5)",
                    "option by=1.5 is not a 64-bit integer"},
        BadPipeline{"overflow", "test_keep(by=99999999999999999999)",
                    "is not a 64-bit integer"},
        BadPipeline{"twice", "test_keep(by=1,by=2)",
                    "option 'by' is given twice"},
        BadPipeline{"open", "test_keep(by=1", "unbalanced parentheses"},
        BadPipeline{"close", "test_keep)", "unbalanced parentheses"},
        BadPipeline{"nested", "test_keep(by=(1))", "unbalanced parentheses"},
        BadPipeline{"rest", "test_keep(by=1)x", "unbalanced parentheses"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(PassOptions, ReadsTypedValues) {
  PassOptions options("p");
  options.Set("i", "-3");
  options.Set("f", "2.5e-3");
  options.Set("b", "true");
  options.Set("s", "text");
  options.Set("l", "a/b+c");
  EXPECT_EQ(options.Int("i", 0), -3);
  EXPECT_EQ(options.Float("f", 0), 2.5e-3);
  EXPECT_TRUE(options.Bool("b", false));
  EXPECT_EQ(options.String("s", ""), "text");
  EXPECT_THAT(options.List("l"), ElementsAre("a/b", "c"));
  EXPECT_EQ(options.Int("absent", 4), 4);
  EXPECT_THAT(options.List("absent"), ElementsAre());
  options.Finish();
}

TEST(PassOptions, RejectsMalformedValues) {
  for (const char* value : {"nan", "inf", "", "1e999", "x", "1 "}) {
    PassOptions options("p");
    options.Set("f", value);
    EXPECT_THROW(options.Float("f", 0), Error) << value;
  }
  PassOptions options("p");
  options.Set("b", "yes");
  options.Set("l", "a++b");
  EXPECT_THROW(options.Bool("b", false), Error);
  EXPECT_THROW(options.List("l"), Error);
}

}  // namespace
}  // namespace plo
