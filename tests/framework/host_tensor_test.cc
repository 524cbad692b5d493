#include "framework/ir/error.h"
#include "framework/runtime/executor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace plo {
namespace {

TEST(HostTensorTest, ConvertsToEveryDTypeAndBack) {
  const std::vector<double> values = {0, 1, -2, 100};
  for (DType dtype : {DType::kFp32, DType::kFp16, DType::kBf16, DType::kInt32,
                      DType::kInt64}) {
    const HostTensor tensor = HostTensor::Of(dtype, Shape{2, 2}, values);
    EXPECT_EQ(tensor.data.size(),
              static_cast<size_t>(ByteSize(dtype, tensor.shape)));
    EXPECT_EQ(tensor.ToDoubles(), values) << DTypeName(dtype);
  }
  EXPECT_EQ(HostTensor::Of(DType::kBool, Shape{4}, values).ToDoubles(),
            (std::vector<double>{0, 1, 1, 1}));
}

TEST(HostTensorTest, RoundsSixteenBitValues) {
  const std::vector<float> values = {1.0f + 0x1p-9f};
  EXPECT_EQ(HostTensor::Of(DType::kBf16, Shape{1}, values).ToDoubles()[0], 1.0);
  EXPECT_EQ(HostTensor::Of(DType::kFp16, Shape{1}, values).ToDoubles()[0],
            1.0 + 0x1p-9);
}

TEST(HostTensorTest, RefusesAWrongNumberOfValues) {
  EXPECT_THAT(
      [] { HostTensor::Of(DType::kFp32, Shape{3}, std::vector<float>{1}); },
      testing::ThrowsMessage<Error>(
          testing::HasSubstr("1 values for shape [3]")));
}

}  // namespace
}  // namespace plo
