// Op schemas: what every op type declares once about itself.
//
// The verifier, the passes and the planner read schemas; kernels are registered
// apart (framework/runtime/kernel.h), so that this layer knows no device.
#ifndef PLO_FRAMEWORK_IR_OP_REGISTRY_H_
#define PLO_FRAMEWORK_IR_OP_REGISTRY_H_

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/ir/program.h"
#include "framework/ir/types.h"

namespace plo {

struct SlotDef {
  std::string name;
  bool optional = false;
  bool variadic = false;  // any number of vars, at least one unless optional
};

enum class AttrType { kBool, kInt, kFloat, kString, kInts, kFloats, kStrings };

struct AttrDef {
  std::string name;
  AttrType type;
  bool required = true;
  Attr default_value = false;  // used when not required
};

// Shape inference: reads the inputs' types and the attributes, sets the
// outputs'. Errors thrown through Fail() name the op, its vars and shapes.
class InferContext {
 public:
  InferContext(const Program& program, const Op& op);

  bool Has(std::string_view slot) const { return op_.HasIn(slot); }
  int Count(std::string_view slot) const {
    return static_cast<int>(op_.In(slot).size());
  }
  const Shape& shape(std::string_view slot, int i = 0) const;
  DType dtype(std::string_view slot, int i = 0) const;
  const AttrMap& attrs() const { return op_.attrs; }
  const Op& op() const { return op_; }
  const Program& program() const { return program_; }

  void Set(std::string_view slot, DType dtype, Shape shape, int i = 0);
  // Throws InvalidArgument: Describe(op), the message, every operand's
  // description.
  template <typename... Args>
  [[noreturn]] void Fail(const Args&... args) const {
    FailWith({StrCatPiece(args)...});
  }
  template <typename... Args>
  void Require(bool condition, const Args&... args) const {
    if (!condition) FailWith({StrCatPiece(args)...});
  }

  struct Result {
    std::string slot;
    int index;
    DType dtype;
    Shape shape;
  };
  const std::vector<Result>& results() const { return results_; }

 private:
  [[noreturn]] void FailWith(std::initializer_list<StrCatPiece> message) const;
  const Program& program_;
  const Op& op_;
  std::vector<Result> results_;
};

// What a gradient maker works with. It is called once per forward op with
// the grads of the op's outputs and emits backward ops through Emit().
class GradContext {
 public:
  virtual ~GradContext() = default;
  virtual const Program& program() const = 0;
  virtual const Op& op() const = 0;  // the forward op
  // Grad var of an output, or kNoId when nothing flows into it.
  virtual VarId OutGrad(std::string_view slot, int i = 0) const = 0;
  // True if the grad of this input is wanted.
  virtual bool NeedsGrad(std::string_view slot, int i = 0) const = 0;
  // The var to write the grad of an input to: pass it as an output of Emit().
  // Same dtype and shape as the input. For a var with several contributions
  // each call gives what this contribution must write; the pass sums them.
  virtual VarId InGrad(std::string_view slot, int i = 0) = 0;
  // A fresh temp, for grads that take more than one op.
  virtual VarId Temp(DType dtype, Shape shape, std::string_view stem) = 0;
  // Adds a backward op; region, role, location and random_id come from op().
  // If the schema has an "acc" input and an `accumulate` attribute and the
  // contribution is not the first of a param, the pass fills both in.
  virtual void Emit(std::string type, std::vector<Slot> inputs,
                    std::vector<Slot> outputs, AttrMap attrs) = 0;
};

// Work of one op, for the estimate of a step's time and for traces.
struct OpCost {
  double flops = 0;
  double bytes = 0;  // memory traffic of reads and writes
};

// An op with its operands' types at hand: what cost and workspace need.
class OpView {
 public:
  OpView(const Program& program, const Op& op) : program_(program), op_(op) {}
  bool Has(std::string_view slot) const { return op_.HasIn(slot); }
  const Var& In(std::string_view slot, int i = 0) const;
  const Var& Out(std::string_view slot, int i = 0) const;
  const AttrMap& attrs() const { return op_.attrs; }
  const Op& op() const { return op_; }
  const Program& program() const { return program_; }

 private:
  const Program& program_;
  const Op& op_;
};

struct OpSchema {
  std::string type;
  std::vector<SlotDef> inputs;
  std::vector<SlotDef> outputs;
  std::vector<AttrDef> attrs;

  std::function<void(InferContext&)> infer;
  // Null: not differentiable; append_backward throws when a grad reaches it.
  std::function<void(GradContext&)> grad;
  // Scratch bytes on the device, an exact figure known without a device: the
  // kernel touches all of it and nothing more. Null means none. The CPU's and
  // CUDA's kernels of an op need different amounts.
  std::function<int64_t(const OpView&)> workspace_bytes;
  std::function<int64_t(const OpView&)> cuda_workspace_bytes;
  // Null: the planner counts operand bytes and no flops.
  std::function<OpCost(const OpView&)> cost;

  // (output slot, input slot): the output may take over the input's bytes when
  // this op is the input's last use. The kernel must allow equal pointers.
  std::vector<std::pair<std::string, std::string>> inplace;
  // (output slot, input slot): the output var must be a view of, or the same
  // var as, the input (reshape; ops that update a state).
  std::vector<std::pair<std::string, std::string>> aliases;

  StreamKind stream = StreamKind::kCompute;
  // Cheap to run again in backward instead of keeping its outputs (norms,
  // activations, dropout, casts): what recompute=cheap drops.
  bool cheap = false;
  bool random = false;  // draws random numbers keyed by Op::random_id
  // The kernel reads the number of the step or micro-step, but for whether the
  // micro-step is the first: its launches differ.
  bool reads_step = false;
  bool side_effect = false;  // never removed as dead
  bool collective = false;   // talks to the other ranks
  // Allowed places of operands: kDevice only, unless listed. "host" kernels run
  // on kPinned operands on the host stream; copies join both.
  enum class Where { kDeviceOnly, kDeviceOrHost, kCopy };
  Where where = Where::kDeviceOnly;

  // Scratch of the op where it runs on `device`; ops of the host stream run on
  // the CPU everywhere.
  int64_t WorkspaceBytes(const OpView& op, DeviceKind device) const;

  // Whether a launch of the op may stand for later ones.
  bool repeats() const { return !random && !reads_step && !collective; }
};

class OpRegistry {
 public:
  // The registry of the process. Filled by RegisterBuiltinOps()
  // (operators/register_ops.h), never by static initialisers.
  static OpRegistry& Global();

  // Throws FailedPrecondition if the type is registered.
  void Register(OpSchema schema);
  const OpSchema* Find(std::string_view type) const;
  // Throws NotFound naming the type and near spellings.
  const OpSchema& Get(std::string_view type) const;
  std::vector<std::string> Types() const;

 private:
  std::map<std::string, OpSchema, std::less<>> schemas_;
};

// Fills defaults of absent optional attributes and checks slots and attribute
// names and types of `op` against its schema. Throws InvalidArgument.
void NormalizeOp(const OpRegistry& registry, const Program& program, Op& op);

// NormalizeOp for every op. The pass manager calls it around each pass, so that
// passes may leave defaults out; whoever builds programs otherwise calls one of
// the two, since the verifier and kernels want every attribute.
void NormalizeProgram(Program& program,
                      const OpRegistry& registry = OpRegistry::Global());

// NormalizeOp without the filling in: an absent attribute is an error.
void CheckOp(const OpRegistry& registry, const Op& op);

// Runs the schema's shape rule. Throws InvalidArgument.
std::vector<InferContext::Result> InferOp(const OpRegistry& registry,
                                          const Program& program, const Op& op);

// True if `dtype` and `shape` of the op's outputs are what InferOp gives; the
// verifier throws with the difference.
void CheckInferred(const OpRegistry& registry, const Program& program,
                   const Op& op);

}  // namespace plo

#endif  // PLO_FRAMEWORK_IR_OP_REGISTRY_H_
