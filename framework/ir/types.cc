#include "framework/ir/types.h"

#include <algorithm>
#include <array>
#include <ostream>

#include "framework/ir/error.h"

namespace plo {
namespace {

constexpr std::array<std::string_view, 6> kDTypeNames = {
    "fp32", "fp16", "bf16", "int32", "int64", "bool"};

// One table of names per enum; the enumerator's value is its index.
template <typename Enum>
struct EnumNames;

#define PLO_ENUM_NAMES(Enum, count, ...)                                      \
  template <>                                                                 \
  struct EnumNames<Enum> {                                                    \
    static constexpr std::string_view kType = #Enum;                          \
    static constexpr std::array<std::string_view, count> kNames{__VA_ARGS__}; \
  }

PLO_ENUM_NAMES(Place, 2, "device", "pinned");
PLO_ENUM_NAMES(StreamKind, 5, "compute", "comm", "d2h", "h2d", "host");
PLO_ENUM_NAMES(Role, 3, "forward", "backward", "update");
PLO_ENUM_NAMES(Section, 3, "startup", "micro", "update");
PLO_ENUM_NAMES(VarKind, 4, "feed", "param", "state", "temp");
PLO_ENUM_NAMES(Relation, 7, "none", "grad_of", "master_of", "moment1_of",
               "moment2_of", "shard_of", "recompute_of");
PLO_ENUM_NAMES(MemoryCategory, 6, "params", "grads", "optimizer_state",
               "activations", "workspace", "communication");

template <size_t N>
std::string JoinNames(const std::array<std::string_view, N>& names) {
  std::string out;
  for (std::string_view name : names) {
    if (!out.empty()) out += ", ";
    out += name;
  }
  return out;
}

}  // namespace

int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
    case DType::kInt32:
      return 4;
    case DType::kFp16:
    case DType::kBf16:
      return 2;
    case DType::kInt64:
      return 8;
    case DType::kBool:
      return 1;
  }
  PLO_THROW(kInternal, "bad dtype ", static_cast<int>(dtype));
}

std::string_view DTypeName(DType dtype) {
  return kDTypeNames[static_cast<size_t>(dtype)];
}

DType ParseDType(std::string_view name) {
  const auto it = std::find(kDTypeNames.begin(), kDTypeNames.end(), name);
  PLO_ENFORCE(it != kDTypeNames.end(), kInvalidArgument, "unknown dtype '",
              name, "', expected one of ", JoinNames(kDTypeNames));
  return static_cast<DType>(it - kDTypeNames.begin());
}

bool IsFloat(DType dtype) { return dtype == DType::kFp32 || Is16Bit(dtype); }

int64_t Shape::dim(int axis) const {
  const int at = axis < 0 ? axis + rank() : axis;
  PLO_ENFORCE(at >= 0 && at < rank(), kInvalidArgument, "axis ", axis,
              " is out of range for shape ", ToString());
  return dims_[at];
}

int64_t Shape::numel() const {
  int64_t count = 1;
  for (int64_t d : dims_) {
    PLO_ENFORCE(d >= 0, kInvalidArgument, "negative dimension in shape ",
                ToString());
    PLO_ENFORCE(!__builtin_mul_overflow(count, d, &count), kInvalidArgument,
                "number of elements overflows in shape ", ToString());
  }
  return count;
}

std::string Shape::ToString() const {
  std::string out = "[";
  for (size_t i = 0; i < dims_.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(dims_[i]);
  }
  return out + "]";
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << shape.ToString();
}

std::ostream& operator<<(std::ostream& out, DType dtype) {
  return out << DTypeName(dtype);
}

int64_t ByteSize(DType dtype, const Shape& shape) {
  int64_t bytes = 0;
  PLO_ENFORCE(!__builtin_mul_overflow(shape.numel(), SizeOf(dtype), &bytes),
              kInvalidArgument, "byte size overflows in ", dtype, shape);
  return bytes;
}

Shape BroadcastShapes(const Shape& a, const Shape& b) {
  std::vector<int64_t> dims(std::max(a.rank(), b.rank()));
  for (int i = 1; i <= static_cast<int>(dims.size()); ++i) {
    const int64_t da = i <= a.rank() ? a[a.rank() - i] : 1;
    const int64_t db = i <= b.rank() ? b[b.rank() - i] : 1;
    PLO_ENFORCE(da == db || da == 1 || db == 1, kInvalidArgument, "shapes ", a,
                " and ", b, " do not broadcast");
    dims[dims.size() - i] = da == 1 ? db : da;
  }
  return Shape(std::move(dims));
}

#define PLO_DEFINE_NAME(Enum)                                              \
  std::string_view Name(Enum value) {                                      \
    return EnumNames<Enum>::kNames[static_cast<size_t>(value)];            \
  }                                                                        \
  template <>                                                              \
  Enum ParseEnum<Enum>(std::string_view name) {                            \
    const auto& names = EnumNames<Enum>::kNames;                           \
    const auto it = std::find(names.begin(), names.end(), name);           \
    PLO_ENFORCE(it != names.end(), kInvalidArgument, "unknown ",           \
                EnumNames<Enum>::kType, " '", name, "', expected one of ", \
                JoinNames(names));                                         \
    return static_cast<Enum>(it - names.begin());                          \
  }

PLO_DEFINE_NAME(Place)
PLO_DEFINE_NAME(StreamKind)
PLO_DEFINE_NAME(Role)
PLO_DEFINE_NAME(Section)
PLO_DEFINE_NAME(VarKind)
PLO_DEFINE_NAME(Relation)
PLO_DEFINE_NAME(MemoryCategory)

}  // namespace plo
