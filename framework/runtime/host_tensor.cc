// HostTensor: conversions between caller's values and stored elements.
#include <cstring>
#include <type_traits>

#include "framework/ir/error.h"
#include "framework/ir/float16.h"
#include "framework/runtime/executor.h"

namespace plo {
namespace {

template <typename Stored, typename T>
Stored Convert(T value) {
  if constexpr (std::is_same_v<Stored, BFloat16> ||
                std::is_same_v<Stored, Float16>) {
    return FromFloat<Stored>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<Stored, bool>) {
    return value != T{};
  } else {
    return static_cast<Stored>(value);
  }
}

template <typename Stored, typename T>
void Fill(const std::vector<T>& values, std::vector<std::byte>& data) {
  data.resize(values.size() * sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i) {
    const Stored stored = Convert<Stored>(values[i]);
    std::memcpy(data.data() + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

template <typename Stored>
std::vector<double> Widen(const std::vector<std::byte>& data) {
  std::vector<double> out(data.size() / sizeof(Stored));
  for (size_t i = 0; i < out.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, data.data() + i * sizeof(Stored), sizeof(Stored));
    if constexpr (std::is_arithmetic_v<Stored>) {
      out[i] = static_cast<double>(stored);
    } else {
      out[i] = ToFloat(stored);
    }
  }
  return out;
}

}  // namespace

template <typename T>
HostTensor HostTensor::Of(DType dtype, Shape shape,
                          const std::vector<T>& values) {
  PLO_ENFORCE(shape.numel() == static_cast<int64_t>(values.size()),
              kInvalidArgument, values.size(), " values for shape ", shape);
  HostTensor tensor;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  switch (dtype) {
    case DType::kFp32:
      Fill<float>(values, tensor.data);
      break;
    case DType::kFp16:
      Fill<Float16>(values, tensor.data);
      break;
    case DType::kBf16:
      Fill<BFloat16>(values, tensor.data);
      break;
    case DType::kInt32:
      Fill<int32_t>(values, tensor.data);
      break;
    case DType::kInt64:
      Fill<int64_t>(values, tensor.data);
      break;
    case DType::kBool:
      Fill<bool>(values, tensor.data);
      break;
  }
  return tensor;
}

template HostTensor HostTensor::Of(DType, Shape, const std::vector<float>&);
template HostTensor HostTensor::Of(DType, Shape, const std::vector<double>&);
template HostTensor HostTensor::Of(DType, Shape, const std::vector<int32_t>&);
template HostTensor HostTensor::Of(DType, Shape, const std::vector<int64_t>&);

std::vector<double> HostTensor::ToDoubles() const {
  switch (dtype) {
    case DType::kFp32:
      return Widen<float>(data);
    case DType::kFp16:
      return Widen<Float16>(data);
    case DType::kBf16:
      return Widen<BFloat16>(data);
    case DType::kInt32:
      return Widen<int32_t>(data);
    case DType::kInt64:
      return Widen<int64_t>(data);
    case DType::kBool:
      return Widen<bool>(data);
  }
  PLO_THROW(kInternal, "dtype out of range");
}

}  // namespace plo
