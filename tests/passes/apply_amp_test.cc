#include <gmock/gmock.h>

#include "framework/ir/op_registry.h"
#include "tests/passes/pass_test_util.h"

namespace plo {
namespace {

TEST(ApplyAmp, LeavesOnlyStatisticsAndLossInFp32) {
  for (const char* dtype : {"bf16", "fp16"}) {
    Program program = SmallGpt();
    EXPECT_EQ(Apply(program, StrCat("apply_amp(dtype=", dtype, ")")),
              std::vector<bool>{true});
    for (VarId id : program.vars()) {
      const Var& var = program.var(id);
      if (!IsFloat(var.dtype)) continue;
      const bool statistic = var.name.find("_mean") != std::string::npos ||
                             var.name.find("_rstd") != std::string::npos ||
                             var.name.find("_lse") != std::string::npos ||
                             var.shape == Shape{1};
      EXPECT_EQ(var.dtype, statistic ? DType::kFp32 : ParseDType(dtype))
          << var.name;
    }
  }
}

TEST(ApplyAmp, GradsHaveTheTypeOfTheirParams) {
  Program program = SmallGpt();
  Apply(program, "apply_amp(dtype=bf16),append_backward");
  for (VarId param : program.Params()) {
    EXPECT_EQ(program.var(program.Related(param, Relation::kGradOf)).dtype,
              DType::kBf16);
  }
}

}  // namespace
}  // namespace plo
