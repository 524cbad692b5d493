#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/operators/op_harness.h"
#include "tests/operators/reference.h"

namespace plo::testing {
namespace {

using ::testing::HasSubstr;

// Random labels of which every third is ignored.
Array Labels(Shape shape, int64_t classes, double ignored = -100) {
  Array labels = RandomInts(DType::kInt32, std::move(shape), 7, 0, classes);
  for (size_t i = 2; i < labels.values.size(); i += 3) {
    labels.values[i] = ignored;
  }
  return labels;
}

class CrossEntropyTest : public ::testing::TestWithParam<DType> {};

TEST_P(CrossEntropyTest, MatchesPlainLoops) {
  const DType t = GetParam();
  for (int64_t classes : {1, 7, 257, 2500}) {
    const Array logits = RandomArray(t, {2, 5, classes}, 1, -6, 6);
    const Array labels = Labels({2, 5}, classes);
    SlotArrays got =
        RunOp({.type = "cross_entropy",
               .inputs = {{"logits", {logits}}, {"labels", {labels}}},
               .outputs = {"loss_sum", "lse"}});
    const CrossEntropyResult want =
        ReferenceCrossEntropy(logits.values, labels.values, classes, -100);
    ExpectNear(got["loss_sum"][0], {want.loss}, 1e-6, 1e-5, "loss_sum");
    ExpectNear(got["lse"][0], want.lse, 1e-6, 1e-6, "lse");

    const Array lse = MakeArray(DType::kFp32, {2, 5}, want.lse);
    Doubles dlogits = ReferenceSoftmax(logits.values, classes).out;
    for (size_t i = 0; i < labels.values.size(); ++i) {
      for (int64_t j = 0; j < classes; ++j) {
        double& d =
            dlogits[i * static_cast<size_t>(classes) + static_cast<size_t>(j)];
        if (labels.values[i] == static_cast<double>(j)) d -= 1;
        d = labels.values[i] < 0 ? 0 : d * 0.25;
      }
    }
    for (bool inplace : {false, true}) {
      const Array got_grad =
          RunOp({.type = "cross_entropy_grad",
                 .inputs = {{"logits", {logits}},
                            {"labels", {labels}},
                            {"lse", {lse}},
                            {"dloss", {ScalarArray(DType::kFp32, 0.25)}}},
                 .outputs = {"dlogits"},
                 .inplace = inplace})["dlogits"][0];
      ExpectNear(got_grad, dlogits, UnitRoundoff(t) + 2e-6, 1e-7, "dlogits");
    }
  }
}

TEST(CrossEntropy, GradientMatchesFiniteDifferences) {
  CheckGradient(
      {.type = "cross_entropy",
       .inputs = {{"logits", {RandomArray(DType::kFp32, {6, 5}, 1, -2, 2)}},
                  {"labels", {Labels({6}, 5, 3)}}},
       .outputs = {"loss_sum", "lse"},
       .attrs = Attrs({{"ignore_index", int64_t{3}}})},
      {"logits"}, {"loss_sum"});
}

TEST(CrossEntropy, IgnoresEveryRowOrNone) {
  const Array logits = RandomArray(DType::kFp32, {2, 3}, 1);
  const Array labels = MakeArray(DType::kInt32, {2}, {-100, -100});
  EXPECT_EQ(RunOp({.type = "cross_entropy",
                   .inputs = {{"logits", {logits}}, {"labels", {labels}}},
                   .outputs = {"loss_sum", "lse"}})["loss_sum"][0]
                .values,
            Doubles{0});
  EXPECT_EQ(
      RunOp({.type = "cross_entropy",
             .inputs = {{"logits", {RandomArray(DType::kFp32, {0, 3}, 1)}},
                        {"labels", {MakeArray(DType::kInt32, {0}, {})}}},
             .outputs = {"loss_sum", "lse"}})["loss_sum"][0]
          .values,
      Doubles{0});
}

TEST(CrossEntropy, Errors) {
  const Array logits = RandomArray(DType::kFp32, {6, 256}, 1);
  Array labels = RandomInts(DType::kInt32, {6}, 2, 0, 256);
  labels.values[5] = 300;
  const OpCase c{.type = "cross_entropy",
                 .inputs = {{"logits", {logits}}, {"labels", {labels}}},
                 .outputs = {"loss_sum", "lse"}};
  EXPECT_THAT(
      RunErrorOf(c),
      HasSubstr("InvalidArgument: label 300 at position 5 is out of range "
                "[0, 256)"));
  EXPECT_THAT(ErrorOf({.type = "cross_entropy",
                       .inputs = {{"logits", {logits}},
                                  {"labels",
                                   {RandomInts(DType::kInt32, {5}, 2, 0, 9)}}},
                       .outputs = {"loss_sum", "lse"}}),
              HasSubstr("labels has shape [5], expected [6]"));
  EXPECT_THAT(
      ErrorOf({.type = "cross_entropy",
               .inputs = {{"logits", {logits}},
                          {"labels", {RandomArray(DType::kFp32, {6}, 2)}}},
               .outputs = {"loss_sum", "lse"}}),
      HasSubstr("labels must be int32, not fp32"));
}

INSTANTIATE_TEST_SUITE_P(DTypes, CrossEntropyTest,
                         ::testing::Values(DType::kFp32, DType::kBf16,
                                           DType::kFp16),
                         [](const auto& test) {
                           return std::string(DTypeName(test.param));
                         });

}  // namespace
}  // namespace plo::testing
