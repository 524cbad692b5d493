// Element types, shapes, places and the other small enums of the IR.
#ifndef PLO_FRAMEWORK_IR_TYPES_H_
#define PLO_FRAMEWORK_IR_TYPES_H_

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace plo {

enum class DType : uint8_t { kFp32, kFp16, kBf16, kInt32, kInt64, kBool };

// Bytes of one element.
int64_t SizeOf(DType dtype);
// "fp32", "fp16", "bf16", "int32", "int64", "bool".
std::string_view DTypeName(DType dtype);
// Throws InvalidArgument on an unknown name.
DType ParseDType(std::string_view name);
bool IsFloat(DType dtype);
inline bool Is16Bit(DType dtype) {
  return dtype == DType::kFp16 || dtype == DType::kBf16;
}

// Dimensions, outermost first; a scalar has none. Dimensions may be zero.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : dims_(dims) {}
  explicit Shape(std::vector<int64_t> dims) : dims_(std::move(dims)) {}

  int rank() const { return static_cast<int>(dims_.size()); }
  // Negative `axis` counts from the end. Throws InvalidArgument out of range.
  int64_t dim(int axis) const;
  int64_t operator[](int axis) const { return dims_[axis]; }
  const std::vector<int64_t>& dims() const { return dims_; }
  // Product of the dimensions; 1 for a scalar. Throws InvalidArgument when a
  // dimension is negative or the product overflows.
  int64_t numel() const;
  // "[2, 3]"
  std::string ToString() const;

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::vector<int64_t> dims_;
};
std::ostream& operator<<(std::ostream& out, const Shape& shape);
std::ostream& operator<<(std::ostream& out, DType dtype);

// Bytes of a dense tensor. Throws InvalidArgument on overflow.
int64_t ByteSize(DType dtype, const Shape& shape);

// numpy broadcasting of two shapes. Throws InvalidArgument naming both.
Shape BroadcastShapes(const Shape& a, const Shape& b);

enum class DeviceKind : uint8_t { kCpu, kCuda };
enum class Place : uint8_t { kDevice, kPinned };
enum class StreamKind : uint8_t { kCompute, kComm, kD2H, kH2D, kHost };
inline constexpr int kStreamCount = 5;
enum class Role : uint8_t { kForward, kBackward, kUpdate };
// kStartup runs once and writes the initial values; kMicro (forward and
// backward) runs accumulate_steps times per step; kUpdate once per step.
enum class Section : uint8_t { kStartup, kMicro, kUpdate };
inline constexpr int kSectionCount = 3;
enum class VarKind : uint8_t { kFeed, kParam, kState, kTemp };
// How a var relates to the var Var::related_to.
enum class Relation : uint8_t {
  kNone,
  kGradOf,
  kMasterOf,
  kMoment1Of,
  kMoment2Of,
  kShardOf,
  kRecomputeOf,
};
enum class MemoryCategory : uint8_t {
  kParams,
  kGrads,
  kOptimizerState,
  kActivations,
  kWorkspace,
  kCommunication,
};
inline constexpr int kMemoryCategoryCount = 6;

std::string_view Name(Place value);           // device, pinned
std::string_view Name(StreamKind value);      // compute, comm, d2h, h2d, host
std::string_view Name(Role value);            // forward, backward, update
std::string_view Name(Section value);         // startup, micro, update
std::string_view Name(VarKind value);         // feed, param, state, temp
std::string_view Name(Relation value);        // none, grad_of, master_of, ...
std::string_view Name(MemoryCategory value);  // params, grads, ...

// Inverse of Name(); throws InvalidArgument naming the choices.
template <typename Enum>
Enum ParseEnum(std::string_view name);

}  // namespace plo

#endif  // PLO_FRAMEWORK_IR_TYPES_H_
