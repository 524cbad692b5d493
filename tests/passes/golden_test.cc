// Runs the cases of tests/passes/golden/<pass>/<case>.txt:
//
//   # Why this case exists.
//   # pipeline: shard_optimizer(degree=2)
//   --- before
//   program ... (op ids and default attributes may be left out)
//   --- after            the exact text; or
//   --- unchanged        the pass reports no change; or
//   --- error InvalidArgument: part of the message (and a pipeline of one pass
//                        must have left the program as it was)
//
// PLO_UPDATE_GOLDEN=1 rewrites the last section; review the diff.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "framework/ir/op_registry.h"
#include "framework/ir/program_text.h"
#include "operators/register_ops.h"
#include "passes/pass.h"
#include "passes/pipeline.h"

namespace plo {
namespace {

namespace fs = std::filesystem;

constexpr char kFolder[] = "tests/passes/golden";

struct GoldenCase {
  std::string head;  // all in front of "--- before"
  std::string pipeline;
  std::string before;
  std::string verdict;  // the line of the last section, without "--- "
  std::string after;
};

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file),
          std::istreambuf_iterator<char>()};
}

GoldenCase ParseCase(const std::string& text) {
  constexpr std::string_view kBefore = "--- before\n";
  constexpr std::string_view kPipeline = "# pipeline: ";
  GoldenCase result;
  const size_t before = text.find(kBefore);
  PLO_ENFORCE(before != std::string::npos && text.rfind("# ", 0) == 0,
              kInvalidArgument,
              "a case starts with a comment and has a '--- before' section");
  result.head = text.substr(0, before);
  const size_t pipeline = result.head.find(kPipeline);
  PLO_ENFORCE(pipeline != std::string::npos && pipeline > 0, kInvalidArgument,
              "the first line says why the case exists, the next ones have "
              "'# pipeline: ...'");
  const size_t start = pipeline + kPipeline.size();
  result.pipeline =
      result.head.substr(start, result.head.find('\n', start) - start);
  const size_t body = before + kBefore.size();
  const size_t last = text.find("\n--- ", body);
  result.before = text.substr(body, last + 1 - body);
  if (last == std::string::npos) return result;
  const size_t line_end = text.find('\n', last + 1);
  result.verdict = text.substr(last + 5, line_end - last - 5);
  if (line_end != std::string::npos) result.after = text.substr(line_end + 1);
  return result;
}

// What the pipeline does to the program of the case, as its last section.
std::pair<std::string, std::string> Outcome(const GoldenCase& c) {
  Program program = ParseProgram(c.before);
  NormalizeProgram(program);
  const std::string before = PrintProgram(program);
  try {
    PassManager manager = PassManager::Parse(c.pipeline);
    manager.Run(program);
    const auto& records = manager.records();
    if (std::none_of(records.begin(), records.end(),
                     [](const PassRecord& record) { return record.changed; })) {
      return {"unchanged", ""};
    }
    return {"after", PrintProgram(program)};
  } catch (const Error& error) {
    if (program.applied_passes.empty()) {
      EXPECT_EQ(PrintProgram(program), before) << "changed by a failed pass";
    }
    return {"error " + std::string(error.what()), ""};
  }
}

class GoldenTest : public testing::TestWithParam<std::string> {};

TEST_P(GoldenTest, Holds) {
  RegisterBuiltinOps();
  RegisterBuiltinPasses();
  const fs::path path = fs::path(kFolder) / GetParam();
  const GoldenCase c = ParseCase(ReadFile(path));
  const auto [verdict, after] = Outcome(c);
  const bool matches_error =
      c.verdict.rfind("error ", 0) == 0 && verdict.rfind("error ", 0) == 0 &&
      verdict.find(c.verdict.substr(6)) != std::string::npos;
  if (std::getenv("PLO_UPDATE_GOLDEN") != nullptr && !matches_error) {
    std::ofstream(path, std::ios::binary)
        << c.head << "--- before\n"
        << c.before << "--- " << verdict << "\n"
        << after;
    return;
  }
  if (matches_error) return;
  EXPECT_EQ(c.verdict, verdict);
  EXPECT_EQ(c.after, after);
}

std::vector<std::string> Cases() {
  std::vector<std::string> cases;
  if (!fs::exists(kFolder)) return cases;
  for (const auto& entry : fs::recursive_directory_iterator(kFolder)) {
    if (entry.path().extension() == ".txt") {
      cases.push_back(fs::relative(entry.path(), kFolder).string());
    }
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Passes, GoldenTest, testing::ValuesIn(Cases()),
                         [](const auto& test) {
                           std::string name = test.param;
                           name.resize(name.size() - 4);
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

TEST(Golden, CasesAreFound) { EXPECT_GE(Cases().size(), 10u); }

}  // namespace
}  // namespace plo
