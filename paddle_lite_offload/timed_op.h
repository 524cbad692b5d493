// One op on a device of its own accord, to be timed: its kernel, as a run
// launches it, without a plan.
#ifndef PLO_PADDLE_LITE_OFFLOAD_TIMED_OP_H_
#define PLO_PADDLE_LITE_OFFLOAD_TIMED_OP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/ir/program.h"
#include "framework/runtime/device.h"
#include "framework/runtime/kernel.h"
#include "operators/operand_binder.h"

namespace plo {

class TimedOp {
 public:
  struct Operand {
    std::string slot;
    DType dtype = DType::kFp32;
    Shape shape;
    Place place = Place::kDevice;
    std::string same_as = {};  // an input, whose var this output is
  };
  struct Spec {
    std::string type;
    std::vector<Operand> inputs;
    std::vector<Operand> outputs;
    AttrMap attrs = {};
    StreamKind stream = StreamKind::kCompute;
    double work = 0;  // of a launch: bytes or flops
  };

  // Allocates the operands and fills them with positive numbers below one. All
  // of it must outlive the op.
  TimedOp(Device& device, const KernelEnv& env, const Spec& spec);
  ~TimedOp();
  TimedOp(const TimedOp&) = delete;
  TimedOp& operator=(const TimedOp&) = delete;

  void Write(const std::string& slot, const void* data, int64_t bytes);
  // Does not wait.
  void Launch(bool traced);
  // Waits for all launches.
  void Finish();
  // When the traced launches ran; after Finish(). Forgets them.
  std::vector<StreamTracer::Span> TakeSpans();

  double work() const { return work_; }

 private:
  void* Allocate(const Var& var);
  VarId AddOperand(const Operand& operand);
  void Run(void* native_stream);

  Device& device_;
  const KernelEnv env_;
  const double work_;
  Program program_;
  std::vector<std::pair<Place, void*>> blocks_;
  OperandBinder binder_;
  std::unique_ptr<KernelContext> context_;
  Kernel kernel_ = nullptr;
  StreamId stream_ = -1;
  Ticket last_ = 0;
  bool traced_ = false;
  std::vector<int64_t> pending_;  // spans of the device's tracer
  std::vector<StreamTracer::Span> spans_;
};

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_TIMED_OP_H_
