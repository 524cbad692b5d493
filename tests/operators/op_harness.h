// Runs single ops on given tensors. Their gradients: gradient_check.h.
//
//   Array x = RandomArray(DType::kBf16, {3, 5}, 1);
//   Arrays out = RunOp({.type = "softmax", .inputs = {{"x", {x}}},
//                       .outputs = {"out"}})["out"];
//
// Each run checks what the planner relies on: outputs and workspace are
// followed by canaries that must survive, the last byte of the declared
// workspace must be written, and inputs that no output aliases stay as they
// were. Outputs start as NaN bytes, so what a kernel leaves out shows up.
//
// With PLO_TEST_DEVICE=cuda in the environment the ops of the device run on a
// GPU, and those of the host where they always do; a test of an op without a
// kernel there is skipped.
#ifndef PLO_TESTS_OPERATORS_OP_HARNESS_H_
#define PLO_TESTS_OPERATORS_OP_HARNESS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/ir/op_registry.h"
#include "framework/runtime/kernel.h"
#include "tests/operators/cuda_runner.h"

namespace plo::testing {

// A tensor whose values are exactly representable in `dtype`.
struct Array {
  DType dtype = DType::kFp32;
  Shape shape;
  std::vector<double> values;

  double operator[](int64_t i) const { return values[static_cast<size_t>(i)]; }
};
using Arrays = std::vector<Array>;
using SlotArrays = std::map<std::string, Arrays>;

// `values` rounded to `dtype`.
Array MakeArray(DType dtype, Shape shape, std::vector<double> values);
// Uniform in [low, high), rounded; the same for the same seed.
Array RandomArray(DType dtype, Shape shape, uint64_t seed, double low = -1,
                  double high = 1);
// Uniform integers in [low, high).
Array RandomInts(DType dtype, Shape shape, uint64_t seed, int64_t low,
                 int64_t high);
Array ScalarArray(DType dtype, double value);  // shape [1]
double RoundTo(DType dtype, double value);
// Largest relative rounding error: 2^-24, 2^-11 (fp16), 2^-8 (bf16).
double UnitRoundoff(DType dtype);

struct OpCase {
  std::string type;
  std::vector<std::pair<std::string, Arrays>> inputs = {};
  // Slots, or "slot*3" for three vars of a variadic slot.
  std::vector<std::string> outputs;
  AttrMap attrs = {};
  // Lets outputs take the bytes of the inputs the schema names in `inplace`.
  bool inplace = false;
  // Input slots whose only var is passed for the output slot too
  // (accumulation, updates of a state), besides OpSchema::aliases.
  std::vector<std::pair<std::string, std::string>> same_var = {};  // out, in
  Place place = Place::kDevice;
  OpId random_id = kNoId;
  StepInfo step = {};
  KernelEnv env = {};
  // Elements by which operands on a GPU miss an aligned address.
  size_t misalign = 0;
};
// Builds attributes inline: Attrs({{"eps", 1e-5}, {"causal", true}}).
AttrMap Attrs(std::vector<std::pair<std::string, Attr>> values);

// Outputs by slot. Fails the running test on a broken canary.
SlotArrays RunOp(const OpCase& c, DeviceKind device = TestDevice());

// The message of the error that inference or normalisation of `c` throws;
// empty if none.
std::string ErrorOf(const OpCase& c);
// The same for an error of the kernel.
std::string RunErrorOf(const OpCase& c);

// Fails unless |got - want| <= absolute + relative * |want| element by element.
void ExpectNear(const Array& got, const std::vector<double>& want,
                double relative, double absolute, const std::string& what);
// Fails unless dtype, shape and every value are equal; NaNs are equal.
void ExpectSame(const Array& got, const Array& want, const std::string& what);

// A program with buffers, for tests of several ops. RunOp() is built on it.
class OpHarness {
 public:
  explicit OpHarness(DeviceKind device = TestDevice());
  ~OpHarness();
  Program& program();
  VarId AddInput(const std::string& name, const Array& value,
                 Place place = Place::kDevice);
  // Appends and infers; output vars are made when the slot holds kNoId.
  Op& AddOp(OpSpec spec, bool inplace = false);
  // With its inputs, and `misalign` of the case.
  Op& AddCase(const OpCase& c);
  // Runs one op that AddOp() made; allocates its outputs.
  void Run(const Op& op, const StepInfo& step, const KernelEnv& env);
  Array Read(VarId var) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plo::testing

#endif  // PLO_TESTS_OPERATORS_OP_HARNESS_H_
