#include "passes/stream_states.h"

#include <algorithm>
#include <string>
#include <utility>

#include "passes/rewrite_utils.h"

namespace plo {
namespace {

constexpr int64_t kChunkAlignment = 128;  // elements

OpSpec Copy(const char* type, std::vector<VarId> from, std::vector<VarId> to) {
  OpSpec spec;
  spec.type = type;
  spec.inputs = {{"x", std::move(from)}};
  spec.outputs = {{"out", std::move(to)}};
  spec.role = Role::kUpdate;
  return spec;
}

// A state of the bucket, by its slot in the optimizer op.
struct State {
  const char* slot;
  VarId pinned = kNoId;
};

class Streamer {
 public:
  Streamer(Program& program, const Bucket& bucket,
           const StreamStatesOptions& options)
      : program_(program), bucket_(bucket), options_(options) {
    const bool own_master = bucket.master != bucket.param_slice;
    if (own_master) states_.push_back({"master", bucket.master});
    states_.push_back({"moment1", bucket.moment1});
    if (bucket.moment2 != kNoId) states_.push_back({"moment2", bucket.moment2});
  }

  std::vector<OpId> Run() {
    for (const State& state : states_) {
      program_.mutable_var(state.pinned).place = Place::kPinned;
    }
    for (OpId id : options_.moment_inits) {
      program_.mutable_op(id).stream = StreamKind::kHost;
    }
    if (options_.master_init != kNoId) InitMaster();
    const int64_t numel = program_.var(bucket_.param_slice).shape.numel();
    const int64_t chunk = EvenChunk(numel);
    for (int64_t begin = 0; begin < numel; begin += chunk) {
      UpdateChunk(begin, std::min(chunk, numel - begin));
    }
    return std::move(ops_);
  }

 private:
  // As few chunks as the limit allows, of about one size, but four where that
  // leaves copies long enough: slots of small models have to fit small gaps.
  int64_t EvenChunk(int64_t numel) const {
    constexpr int64_t kFew = 4, kLongEnough = 16 << 10;
    const int64_t chunks =
        std::max({(numel + options_.chunk - 1) / options_.chunk,
                  std::min(kFew, numel / kLongEnough), int64_t{1}});
    const int64_t lines = (numel + kChunkAlignment - 1) / kChunkAlignment;
    return (lines + chunks - 1) / chunks * kChunkAlignment;
  }

  // On the device, of which startup has all the memory.
  void InitMaster() {
    const Var master = program_.var(bucket_.master);
    const VarId init = AddTemp(program_, master.name + "@init", master.dtype,
                               master.shape, MemoryCategory::kCommunication);
    program_.mutable_op(options_.master_init).SetOut("out", {init});
    program_.InvalidateIndex();
    OpSpec copy = Copy("copy_d2h", {init}, {bucket_.master});
    copy.role = Role::kForward;
    program_.InsertAfter(options_.master_init, std::move(copy));
  }

  // Elements [begin, begin + numel) of a var.
  VarId Part(VarId id, int64_t begin, int64_t numel) {
    const Var var = program_.var(id);
    if (numel == var.shape.numel()) return id;
    return AddView(program_, var.name + "@chunk", id, var.dtype, {numel},
                   begin * SizeOf(var.dtype), 0);
  }

  void UpdateChunk(int64_t begin, int64_t numel) {
    const VarId staging =
        AddTemp(program_, bucket_.name + "@states", DType::kFp32,
                {numel * static_cast<int64_t>(states_.size())},
                MemoryCategory::kCommunication);
    OpSpec update = UpdateSpec(begin, numel);
    std::vector<VarId> pinned, device;
    int64_t offset = 0;
    for (const State& state : states_) {
      pinned.push_back(Part(state.pinned, begin, numel));
      device.push_back(AddView(program_,
                               program_.var(state.pinned).name + "@device",
                               staging, DType::kFp32, {numel}, offset, 0));
      offset += numel * SizeOf(DType::kFp32);
      Bind(update.inputs, state.slot, device.back());
      Bind(update.outputs, state.slot, device.back());
    }
    const auto append = [this](OpSpec spec) {
      ops_.push_back(program_.Append(Section::kUpdate, std::move(spec)).id);
    };
    append(Copy("copy_h2d", pinned, device));
    append(std::move(update));
    append(Copy("copy_d2h", device, pinned));
  }

  // The optimizer op for one chunk, with the states still to bind.
  OpSpec UpdateSpec(int64_t begin, int64_t numel) {
    const Op& op = program_.op(options_.optimizer);
    OpSpec spec;
    spec.type = op.type;
    spec.inputs = op.inputs;
    spec.outputs = op.outputs;
    spec.attrs = op.attrs;
    spec.role = op.role;
    spec.region = op.region;
    spec.location = op.location;
    const int64_t slice = program_.var(bucket_.param_slice).shape.numel();
    if (numel < slice) {
      spec.attrs.Set("slice_begin", begin);
      spec.attrs.Set("slice_numel", slice);
    }
    Bind(spec.inputs, "grad", Part(op.In1("grad"), begin, numel));
    const VarId param = Part(bucket_.param_slice, begin, numel);
    if (bucket_.master == bucket_.param_slice) {
      Bind(spec.inputs, "master", param);
      Bind(spec.outputs, "master", param);
    } else {
      Bind(spec.outputs, "param", param);
    }
    return spec;
  }

  static void Bind(std::vector<Slot>& slots, std::string_view name, VarId var) {
    for (Slot& slot : slots) {
      if (slot.name == name) slot.vars = {var};
    }
  }

  Program& program_;
  const Bucket& bucket_;
  const StreamStatesOptions& options_;
  std::vector<State> states_;
  std::vector<OpId> ops_;
};

}  // namespace

std::vector<OpId> StreamStates(Program& program, const Bucket& bucket,
                               const StreamStatesOptions& options) {
  return Streamer(program, bucket, options).Run();
}

}  // namespace plo
