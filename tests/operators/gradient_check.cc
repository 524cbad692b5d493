#include "tests/operators/gradient_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace plo::testing {
namespace {

// "x" or "x:1" to slot and index.
std::pair<std::string, int> ParseKey(const std::string& key) {
  const size_t colon = key.find(':');
  if (colon == std::string::npos) return {key, 0};
  return {key.substr(0, colon), std::stoi(key.substr(colon + 1))};
}

// Collects the ops a gradient maker emits.
class HarnessGradContext : public GradContext {
 public:
  HarnessGradContext(OpHarness& harness, const Op& op,
                     std::map<std::pair<std::string, int>, VarId> out_grads,
                     const std::vector<std::string>& wanted)
      : harness_(harness), op_(op), out_grads_(std::move(out_grads)) {
    for (const std::string& key : wanted) wanted_[ParseKey(key)] = kNoId;
  }

  const Program& program() const override { return harness_.program(); }
  const Op& op() const override { return op_; }
  VarId OutGrad(std::string_view slot, int i) const override {
    const auto it = out_grads_.find({std::string(slot), i});
    return it == out_grads_.end() ? kNoId : it->second;
  }
  bool NeedsGrad(std::string_view slot, int i) const override {
    return wanted_.count({std::string(slot), i}) > 0;
  }
  VarId InGrad(std::string_view slot, int i) override {
    const auto it = wanted_.find({std::string(slot), i});
    EXPECT_TRUE(it != wanted_.end()) << "grad of " << slot << " is not wanted";
    EXPECT_EQ(it->second, kNoId) << "InGrad(" << slot << ") called twice";
    const Var source =
        harness_.program().var(op_.In(slot)[static_cast<size_t>(i)]);
    it->second = Temp(source.dtype, source.shape, source.name + "@grad");
    return it->second;
  }
  VarId Temp(DType dtype, Shape shape, std::string_view stem) override {
    Var var;
    var.name = harness_.program().UniqueName(std::string(stem));
    var.dtype = dtype;
    var.shape = std::move(shape);
    return harness_.program().AddVar(std::move(var));
  }
  void Emit(std::string type, std::vector<Slot> inputs,
            std::vector<Slot> outputs, AttrMap attrs) override {
    OpSpec spec;
    spec.type = std::move(type);
    spec.inputs = std::move(inputs);
    spec.outputs = std::move(outputs);
    spec.attrs = std::move(attrs);
    spec.role = Role::kBackward;
    spec.random_id = op_.random_id;
    emitted_.push_back(harness_.AddOp(std::move(spec)).id);
  }

  const std::vector<OpId>& emitted() const { return emitted_; }
  const std::map<std::pair<std::string, int>, VarId>& grads() const {
    return wanted_;
  }

 private:
  OpHarness& harness_;
  const Op& op_;
  std::map<std::pair<std::string, int>, VarId> out_grads_;
  std::map<std::pair<std::string, int>, VarId> wanted_;
  std::vector<OpId> emitted_;
};

}  // namespace

std::map<std::string, Array> Gradients(
    OpHarness& harness, const Op& op,
    const std::map<std::string, Array>& out_grads,
    const std::vector<std::string>& wanted, const StepInfo& step,
    const KernelEnv& env) {
  std::map<std::pair<std::string, int>, VarId> grad_vars;
  for (const auto& [key, array] : out_grads) {
    grad_vars[ParseKey(key)] = harness.AddInput(key + "@grad", array);
  }
  HarnessGradContext context(harness, op, std::move(grad_vars), wanted);
  const OpSchema& schema = OpRegistry::Global().Get(op.type);
  PLO_ENFORCE(schema.grad, kInternal, "op '", op.type, "' has no gradient");
  schema.grad(context);
  for (OpId id : context.emitted())
    harness.Run(harness.program().op(id), step, env);
  std::map<std::string, Array> result;
  for (const std::string& key : wanted) {
    const VarId id = context.grads().at(ParseKey(key));
    EXPECT_NE(id, kNoId) << "the gradient of " << op.type << " leaves out "
                         << key;
    if (id != kNoId) result[key] = harness.Read(id);
  }
  return result;
}

std::map<std::string, Array> RunGrad(
    const OpCase& c, const std::map<std::string, Array>& out_grads,
    const std::vector<std::string>& wanted) {
  OpHarness harness;
  Op& op = harness.AddCase(c);
  harness.Run(op, c.step, c.env);
  return Gradients(harness, op, out_grads, wanted, c.step, c.env);
}

void CheckGradient(const OpCase& c, const std::vector<std::string>& wanted,
                   const std::vector<std::string>& through, double step,
                   double tolerance) {
  const SlotArrays outputs = RunOp(c);
  std::map<std::string, Array> weights;
  uint64_t seed = 99;
  for (const std::string& key : through) {
    const auto [slot, index] = ParseKey(key);
    const Array& out = outputs.at(slot)[static_cast<size_t>(index)];
    weights[key] = RandomArray(out.dtype, out.shape, ++seed);
  }
  const auto grads = RunGrad(c, weights, wanted);
  const auto value = [&](const OpCase& moved) {
    const SlotArrays result = RunOp(moved);
    double sum = 0;
    for (const auto& [key, weight] : weights) {
      const auto [slot, index] = ParseKey(key);
      const Array& out = result.at(slot)[static_cast<size_t>(index)];
      for (size_t i = 0; i < out.values.size(); ++i) {
        sum += out.values[i] * weight.values[i];
      }
    }
    return sum;
  };
  for (const std::string& key : wanted) {
    const auto [slot, index] = ParseKey(key);
    const Array& grad = grads.at(key);
    double largest = 1e-3;
    for (double v : grad.values) largest = std::max(largest, std::abs(v));
    OpCase moved = c;
    Array* input = nullptr;
    for (auto& [name, arrays] : moved.inputs) {
      if (name == slot) input = &arrays[static_cast<size_t>(index)];
    }
    ASSERT_NE(input, nullptr) << key;
    ASSERT_EQ(input->values.size(), grad.values.size()) << key;
    for (size_t i = 0; i < grad.values.size(); ++i) {
      const double kept = input->values[i];
      const double up = RoundTo(DType::kFp32, kept + step);
      const double down = RoundTo(DType::kFp32, kept - step);
      input->values[i] = up;
      const double high = value(moved);
      input->values[i] = down;
      const double low = value(moved);
      input->values[i] = kept;
      EXPECT_NEAR(grad.values[i], (high - low) / (up - down),
                  tolerance * largest)
          << c.type << ": grad of " << key << " at element " << i;
    }
  }
}

}  // namespace plo::testing
