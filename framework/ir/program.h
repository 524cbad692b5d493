// The program IR: vars, ops and the Program that owns both.
//
// A Program is SPMD: every rank holds the same one and the rank only picks
// slices (Var::rank_stride_bytes). It has three op lists, the sections; see
// Section in types.h. Ops of a section are in program order, which is the order
// in which they are issued to their streams.
//
// A var names bytes. Several vars may name the same bytes: a var with
// `view_of >= 0` is a view of another var. A kTemp var has one writing op,
// except where an op lists the same var as input and output (an ordered
// in-place update) or where views of disjoint ranges fill one storage. Params
// and states may be written by any number of ops, in program order.
//
// Thread-compatible.
#ifndef PLO_FRAMEWORK_IR_PROGRAM_H_
#define PLO_FRAMEWORK_IR_PROGRAM_H_

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "framework/ir/error.h"
#include "framework/ir/types.h"

namespace plo {

using VarId = int32_t;
using OpId = int32_t;
inline constexpr int32_t kNoId = -1;

// What an optimizer and the communication passes need to know of a param.
struct ParamAttrs {
  bool trainable = true;
  bool need_clip = true;     // part of the global norm and of its scaling
  bool weight_decay = true;  // false for norms and biases
  double lr_scale = 1.0;
  friend bool operator==(const ParamAttrs&, const ParamAttrs&) = default;
};

struct Var {
  VarId id = kNoId;
  std::string name;
  DType dtype = DType::kFp32;
  Shape shape;
  VarKind kind = VarKind::kTemp;
  Place place = Place::kDevice;
  MemoryCategory category = MemoryCategory::kActivations;

  // View: the bytes start at byte_offset + rank * rank_stride_bytes of view_of.
  VarId view_of = kNoId;
  int64_t byte_offset = 0;
  int64_t rank_stride_bytes = 0;

  Relation relation = Relation::kNone;
  VarId related_to = kNoId;

  std::string region;  // slash path such as "layer3/core_attn"
  ParamAttrs param;    // meaningful for kParam

  int64_t bytes() const { return ByteSize(dtype, shape); }
  bool is_view() const { return view_of != kNoId; }
};

using Attr =
    std::variant<bool, int64_t, double, std::string, std::vector<int64_t>,
                 std::vector<double>, std::vector<std::string>>;

// Typed attributes by name, sorted so that printing is canonical.
class AttrMap {
 public:
  bool Has(std::string_view name) const;
  // The getters throw NotFound for an absent name and InvalidArgument for a
  // value of another type.
  bool GetBool(std::string_view name) const;
  int64_t GetInt(std::string_view name) const;
  double GetFloat(std::string_view name) const;
  const std::string& GetString(std::string_view name) const;
  const std::vector<int64_t>& GetInts(std::string_view name) const;
  const std::vector<double>& GetFloats(std::string_view name) const;
  const std::vector<std::string>& GetStrings(std::string_view name) const;
  const Attr* Find(std::string_view name) const;

  void Set(std::string name, Attr value);
  // Without these an int or a literal would pick the wrong alternative. A
  // template, so that no double or bool converts to int.
  template <std::same_as<int> T>
  void Set(std::string name, T value) {
    Set(std::move(name), Attr(int64_t{value}));
  }
  void Set(std::string name, const char* value) {
    Set(std::move(name), Attr(std::string(value)));
  }
  void Erase(std::string_view name);

  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  bool empty() const { return values_.empty(); }
  friend bool operator==(const AttrMap&, const AttrMap&) = default;

 private:
  const Attr& At(std::string_view name) const;
  std::map<std::string, Attr, std::less<>> values_;
};

// A named operand list of an op.
struct Slot {
  std::string name;
  std::vector<VarId> vars;
  friend bool operator==(const Slot&, const Slot&) = default;
};

struct Op {
  OpId id = kNoId;  // stable: never reused, kept by serialisation
  std::string type;
  std::vector<Slot> inputs;
  std::vector<Slot> outputs;
  AttrMap attrs;
  Role role = Role::kForward;
  Section section = Section::kMicro;
  StreamKind stream = StreamKind::kCompute;
  std::string region;
  // Extra ordering: this op starts after the latest issued instance of each of
  // these ops is complete. An op later in the cycle means its instance of the
  // step before.
  std::vector<OpId> after;
  // Runs in the first micro-step of a step only.
  bool first_micro_only = false;
  // Keys the random numbers of this op; recomputed clones keep it. kNoId for
  // ops that are not random.
  OpId random_id = kNoId;
  // Where the user's code built the op: "file:line", or empty.
  std::string location;

  // The vars of a slot; empty when the slot is absent.
  const std::vector<VarId>& In(std::string_view slot) const;
  const std::vector<VarId>& Out(std::string_view slot) const;
  // The only var of a slot, or kNoId. Throws Internal if there are several.
  VarId In1(std::string_view slot) const;
  VarId Out1(std::string_view slot) const;
  bool HasIn(std::string_view slot) const { return !In(slot).empty(); }
  void SetIn(std::string_view slot, std::vector<VarId> vars);
  void SetOut(std::string_view slot, std::vector<VarId> vars);
};

// What a pass fills in to add an op. Slots keep the order given.
struct OpSpec {
  std::string type;
  std::vector<Slot> inputs;
  std::vector<Slot> outputs;
  AttrMap attrs;
  Role role = Role::kForward;
  StreamKind stream = StreamKind::kCompute;
  std::string region;
  std::string location;
  bool first_micro_only = false;
  OpId random_id = kNoId;
};

// Params that are reduced, updated and gathered together. Made by
// shard_optimizer, read by the passes after it. Members start at multiples of
// 128 elements; padding holds zeros. Rank r owns elements
// [r * shard_numel, (r + 1) * shard_numel).
struct Bucket {
  struct Member {
    VarId param = kNoId;
    int64_t offset = 0;  // elements
    int64_t numel = 0;
    friend bool operator==(const Member&, const Member&) = default;
  };
  std::string name;
  std::vector<Member> members;  // ascending offsets
  int64_t numel = 0;            // padded; shard_numel * ranks
  int64_t shard_numel = 0;
  bool trainable = true;
  // The storage that holds the params, and this rank's slice of it (the
  // whole in stage 0, where every rank updates everything).
  VarId param = kNoId;
  VarId param_slice = kNoId;
  VarId grad = kNoId;  // the storage the backward ops write; kNoId if frozen
  // The reduced, accumulated gradient in grad_dtype that the optimizer reads,
  // of the elements of param_slice.
  VarId final_grad = kNoId;
  // True if param_slice and final_grad cover this rank's slice only.
  bool sliced = true;
  // Optimizer state over the elements of param_slice; kNoId where there is
  // none. master is param_slice itself in fp32 without offload.
  VarId master = kNoId, moment1 = kNoId, moment2 = kNoId;
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

class Program {
 public:
  Program() = default;
  Program(Program&&) = default;
  Program& operator=(Program&&) = default;
  // Explicit deep copy.
  Program Clone() const;

  // --- Whole-program facts ---
  std::string name = "main";
  int64_t seed = 0;
  int world_size = 1;
  int accumulate_steps = 1;
  // The passes applied so far, as pipeline text, in order.
  std::vector<std::string> applied_passes;
  // Sum of the loss over the valid items of this rank's micro-batch, and the
  // number of valid items of this rank's step (all ranks' after
  // shard_optimizer): fp32 [1] each. Set by the builder.
  VarId loss = kNoId;
  VarId loss_count = kNoId;
  // Mean loss over the global batch, fp32 [1], valid after each update.
  VarId mean_loss = kNoId;
  // See operators/step_record.cc: one fp32 vector per step.
  VarId step_record = kNoId;
  VarId loss_scale = kNoId;  // fp32 [1] state; kNoId without loss scaling
  std::vector<Bucket> buckets;

  // --- Vars ---
  // Takes `var` without its id. Throws InvalidArgument if the name is taken.
  VarId AddVar(Var var);
  // Name made unique by a numeric suffix if it is taken.
  std::string UniqueName(const std::string& stem) const;
  const Var& var(VarId id) const;
  Var& mutable_var(VarId id);
  // kNoId if there is none.
  VarId FindVar(std::string_view name) const;
  // Throws NotFound.
  VarId GetVar(std::string_view name) const;
  // Removes a var nothing uses. Throws FailedPrecondition if it is in use.
  void EraseVar(VarId id) { EraseVars({id}); }
  // The same for many vars, which may refer to each other, in linear time.
  void EraseVars(const std::vector<VarId>& ids);
  // All live var ids, ascending (creation order).
  std::vector<VarId> vars() const;
  bool HasVar(VarId id) const;
  void RenameVar(VarId id, const std::string& name);
  // The var that owns the bytes of `id`: follows view_of to its end.
  VarId StorageOf(VarId id) const;
  // Byte offset of `id` within StorageOf(id) for `rank`.
  int64_t OffsetInStorage(VarId id, int rank) const;
  // Params in creation order.
  std::vector<VarId> Params() const;
  // The var that stands in `relation` to `of`, or kNoId.
  VarId Related(VarId of, Relation relation) const;

  // --- Ops ---
  const std::vector<std::unique_ptr<Op>>& ops(Section section) const {
    return sections_[static_cast<size_t>(section)];
  }
  size_t op_count() const { return op_by_id_.size(); }
  Op& Append(Section section, OpSpec spec);
  Op& InsertBefore(OpId position, OpSpec spec);
  Op& InsertAfter(OpId position, OpSpec spec);
  // Also drops the op from every `after` list.
  void EraseOp(OpId id);
  // The same for many ops, in linear time.
  void EraseOps(const std::vector<OpId>& ids);
  // Gives the ops of a section a new order, a permutation of their ids, in
  // linear time: a pass that adds many ops appends them and reorders once.
  // Throws InvalidArgument if `order` is no permutation.
  void Reorder(Section section, const std::vector<OpId>& order);
  // Moves an op in front of another of the same section.
  void MoveBefore(OpId id, OpId position);
  const Op& op(OpId id) const;
  Op& mutable_op(OpId id);
  bool HasOp(OpId id) const { return op_by_id_.count(id) > 0; }
  // Position within its section, counted from zero.
  size_t IndexOf(OpId id) const;

  // --- Def-use ---
  // Ops that list `var` itself (not its views) as an output / input, startup
  // first, then micro, then update, each in program order. The index is built
  // on demand and dropped by any edit made through this class; after changing
  // slots through mutable_op() call InvalidateIndex().
  const std::vector<OpId>& Writers(VarId var) const;
  const std::vector<OpId>& Readers(VarId var) const;
  void InvalidateIndex() { index_valid_ = false; }
  // Replaces `from` by `to` in the inputs of `op`.
  void ReplaceInput(OpId op, VarId from, VarId to);

  // For deserialisation: keeps the id given and later ids above it.
  Op& AppendWithId(Section section, OpId id, OpSpec spec,
                   std::vector<OpId> after);
  VarId AddVarWithId(Var var);

 private:
  struct PlacedOp {
    Op* op = nullptr;
    size_t near = 0;  // where it stood when it was placed
  };

  Op& Insert(Section section, size_t index, OpSpec spec, OpId id);
  void BuildIndex() const;

  std::vector<std::optional<Var>> vars_;
  std::unordered_map<std::string, VarId> var_by_name_;
  std::vector<std::unique_ptr<Op>> sections_[kSectionCount];
  std::unordered_map<OpId, PlacedOp> op_by_id_;
  OpId next_op_id_ = 0;

  mutable bool index_valid_ = false;
  mutable std::vector<std::vector<OpId>> writers_, readers_;
};

// "op 'matmul' #12 (layer0/fc1, built at gpt.cc:40)": how messages name an op.
std::string Describe(const Op& op);
// "fp32 [2, 3] 'w'": how messages name a var.
std::string Describe(const Var& var);

}  // namespace plo

#endif  // PLO_FRAMEWORK_IR_PROGRAM_H_
