// Gradients of ops, and their comparison with finite differences.
#ifndef PLO_TESTS_OPERATORS_GRADIENT_CHECK_H_
#define PLO_TESTS_OPERATORS_GRADIENT_CHECK_H_

#include <map>
#include <string>
#include <vector>

#include "tests/operators/op_harness.h"

namespace plo::testing {

// Emits and runs the gradient ops of `op` for the grads of the inputs in
// `wanted` ("x", or "x:1" for the second var of a slot), with `out_grads` as
// the grads of outputs. Result by the same keys.
std::map<std::string, Array> Gradients(
    OpHarness& harness, const Op& op,
    const std::map<std::string, Array>& out_grads,
    const std::vector<std::string>& wanted, const StepInfo& step,
    const KernelEnv& env);

// The same after the forward op.
std::map<std::string, Array> RunGrad(
    const OpCase& c, const std::map<std::string, Array>& out_grads,
    const std::vector<std::string>& wanted);

// Compares RunGrad() in fp32 with central differences of
// sum(out * weight) for random weights of the outputs `through`. `tolerance`
// is relative to the largest grad of the input.
void CheckGradient(const OpCase& c, const std::vector<std::string>& wanted,
                   const std::vector<std::string>& through, double step = 1e-2,
                   double tolerance = 2e-3);

}  // namespace plo::testing

#endif  // PLO_TESTS_OPERATORS_GRADIENT_CHECK_H_
