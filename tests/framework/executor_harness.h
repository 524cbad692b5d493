// Programs of tiny test ops, and a plan that shares no bytes and runs one
// launch after the other, for tests of the executor alone.
#ifndef PLO_TESTS_FRAMEWORK_EXECUTOR_HARNESS_H_
#define PLO_TESTS_FRAMEWORK_EXECUTOR_HARNESS_H_

#include <memory>
#include <string>
#include <vector>

#include "framework/runtime/executor.h"

namespace plo::harness {

// Registers the schemas and kernels of the test ops, once. All are fp32; those
// marked * run on the CPU only.
//   test_fill() -> out {value}
//   test_scale(x) -> out {factor}       out = x * factor
//   test_add(x, y) -> out               out may be x
//   test_slice(x) -> out                x [A, ...]: the micro-step's part
//   test_accumulate(x, acc) -> acc      micro-step 0 writes, later ones add
//   test_step(x) -> out                 out = data_step, micro_index, ...
//   test_fail(x) -> out                 * throws where x[0] is 13
//   test_index(x) -> out                reports x[i] of kIndexBound or more
//   test_overrun(x) -> out              writes a byte past out
//   test_workspace(x) -> out {touch}    writes `touch` bytes of workspace
//   test_stray(x) -> out                writes x[0] too
//   test_all_reduce(x) -> out           * a collective, in place
// and copy_h2d, copy_d2h(x) -> out.
void RegisterTestOps();
// Part of it; nothing in a build without CUDA.
void RegisterCudaTestOps();
inline constexpr int kIndexBound = 10;

class TestProgram {
 public:
  explicit TestProgram(const std::string& name = "main") {
    RegisterTestOps();
    program.name = name;
  }
  VarId Add(VarKind kind, const std::string& name, Shape shape,
            Place place = Place::kDevice,
            MemoryCategory category = MemoryCategory::kActivations);
  VarId Feed(const std::string& name, Shape shape) {
    return Add(VarKind::kFeed, name, std::move(shape));
  }
  VarId Param(const std::string& name, Shape shape) {
    return Add(VarKind::kParam, name, std::move(shape), Place::kDevice,
               MemoryCategory::kParams);
  }
  VarId State(const std::string& name, Shape shape,
              Place place = Place::kDevice) {
    return Add(VarKind::kState, name, std::move(shape), place,
               MemoryCategory::kWorkspace);
  }
  VarId Temp(const std::string& name, Shape shape,
             Place place = Place::kDevice) {
    return Add(VarKind::kTemp, name, std::move(shape), place);
  }
  // Inputs go to slots x, y (acc for test_accumulate), the output to out / acc.
  Op& Do(Section section, const std::string& type, std::vector<VarId> inputs,
         VarId output, StreamKind stream = StreamKind::kCompute,
         AttrMap attrs = {});
  Op& Fill(VarId var, double value);  // in the startup section

  Program program;
};

AttrMap Attrs(const std::string& name, Attr value);

// Every storage has bytes of its own; every launch waits for the one before.
// `workspace` adds as many bytes to each launch of a test_workspace op.
Plan NaivePlan(const Program& program, std::vector<VarId> fetches = {},
               const std::vector<const Program*>& evals = {},
               int64_t workspace = 0);

// The launch of an op, or of a feed or fetch by the name of its var.
LaunchIndex FindLaunch(const Plan& plan, OpId op);
LaunchIndex FindLaunch(const Plan& plan, LaunchKind kind, VarId var);
Storage& FindStorage(Plan& plan, const std::string& name);

HostTensor Floats(Shape shape, const std::vector<float>& values);
std::vector<double> Values(Executor& executor, const std::string& name);

}  // namespace plo::harness

#endif  // PLO_TESTS_FRAMEWORK_EXECUTOR_HARNESS_H_
