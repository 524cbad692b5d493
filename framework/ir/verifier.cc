#include "framework/ir/verifier.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>

#include "framework/ir/program_text.h"

namespace plo {
namespace {

// A set of bytes, as disjoint intervals that do not touch.
class ByteRanges {
 public:
  bool Covers(int64_t begin, int64_t end) const {
    if (begin >= end) return true;
    auto it = ranges_.upper_bound(begin);
    if (it == ranges_.begin()) return false;
    return std::prev(it)->second >= end;
  }
  bool Overlaps(int64_t begin, int64_t end) const {
    if (begin >= end) return false;
    auto it = ranges_.lower_bound(end);
    return it != ranges_.begin() && std::prev(it)->second > begin;
  }
  void Add(int64_t begin, int64_t end) {
    if (begin >= end) return;
    auto it = ranges_.upper_bound(begin);
    if (it != ranges_.begin() && std::prev(it)->second >= begin) {
      --it;
      begin = it->first;
    }
    while (it != ranges_.end() && it->first <= end) {
      end = std::max(end, it->second);
      it = ranges_.erase(it);
    }
    ranges_[begin] = end;
  }

 private:
  std::map<int64_t, int64_t> ranges_;  // begin -> end
};

// Where the bytes of a var are, for rank 0.
struct Location {
  VarId storage = kNoId;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t rank_stride = 0;
};

class Verifier {
 public:
  Verifier(const Program& program, const OpRegistry& registry)
      : program_(program), registry_(registry) {}

  void Run() {
    for (VarId id : program_.vars()) CheckVarRefs(program_.var(id));
    CheckProgramRefs();
    ResolveLocations();
    for (const Bucket& bucket : program_.buckets) CheckBucket(bucket);
    IndexOps();
    for (int s = 0; s < kSectionCount; ++s) {
      const auto section = static_cast<Section>(s);
      // Temps of startup are gone when micro starts.
      if (section == Section::kMicro) written_.clear();
      for (const auto& op : program_.ops(section)) CheckOne(*op);
    }
  }

 private:
  const Var& var(VarId id) const { return program_.var(id); }
  const Location& at(VarId id) const { return locations_[id]; }

  // --- Vars ---

  void CheckVarRefs(const Var& v) const {
    PLO_ENFORCE(v.view_of == kNoId || program_.HasVar(v.view_of),
                kInvalidArgument, "var '", v.name,
                "' is a view of the unknown var id ", v.view_of);
    PLO_ENFORCE(v.related_to == kNoId || program_.HasVar(v.related_to),
                kInvalidArgument, "var '", v.name,
                "' is related to the unknown var id ", v.related_to);
    PLO_ENFORCE((v.relation == Relation::kNone) == (v.related_to == kNoId),
                kInvalidArgument, "var '", v.name, "' has the relation ",
                Name(v.relation), v.related_to == kNoId ? " to no var" : " to",
                v.related_to == kNoId ? "" : " '" + NameOf(v.related_to) + "'");
  }

  std::string NameOf(VarId id) const {
    return program_.HasVar(id) ? var(id).name : StrCat("?", id);
  }

  void CheckRef(VarId id, std::string_view what) const {
    PLO_ENFORCE(id == kNoId || program_.HasVar(id), kInvalidArgument, what,
                " is the unknown var id ", id);
  }

  void CheckProgramRefs() const {
    PLO_ENFORCE(program_.world_size > 0, kInvalidArgument, "world_size is ",
                program_.world_size);
    PLO_ENFORCE(program_.accumulate_steps > 0, kInvalidArgument,
                "accumulate_steps is ", program_.accumulate_steps);
    CheckRef(program_.loss, "loss");
    CheckRef(program_.loss_count, "loss_count");
    CheckRef(program_.mean_loss, "mean_loss");
    CheckRef(program_.step_record, "step_record");
    CheckRef(program_.loss_scale, "loss_scale");
  }

  void ResolveLocations() {
    const std::vector<VarId> ids = program_.vars();
    locations_.resize(ids.empty() ? 0 : ids.back() + 1);
    for (VarId id : ids) Resolve(id, 0);
  }

  const Location& Resolve(VarId id, int depth) {
    Location& location = locations_[id];
    if (location.storage != kNoId) return location;
    const Var& v = var(id);
    PLO_ENFORCE(depth < 64, kInvalidArgument, "the views of var '", v.name,
                "' form a cycle, or a chain of more than 64");
    int64_t bytes = 0;
    try {
      bytes = v.bytes();
    } catch (const Error& error) {
      throw error.WithContext("var '" + v.name + "'");
    }
    if (!v.is_view()) {
      location = {id, 0, bytes, 0};
      return location;
    }
    const Location base = Resolve(v.view_of, depth + 1);
    const Var& of = var(v.view_of);
    const int64_t available = base.end - base.begin;
    // Without sums and products that could overflow.
    const bool fits =
        v.byte_offset >= 0 && v.rank_stride_bytes >= 0 && bytes <= available &&
        v.byte_offset <= available - bytes &&
        (v.rank_stride_bytes == 0 ||
         program_.world_size - 1 <=
             (available - bytes - v.byte_offset) / v.rank_stride_bytes);
    PLO_ENFORCE(fits, kInvalidArgument, "view '", v.name, "' of ", bytes,
                " bytes does not lie within '", of.name, "' of ", available,
                " bytes on rank ", program_.world_size - 1, " (offset ",
                v.byte_offset, ", rank stride ", v.rank_stride_bytes, ")");
    PLO_ENFORCE(v.byte_offset % SizeOf(v.dtype) == 0 &&
                    v.rank_stride_bytes % SizeOf(v.dtype) == 0,
                kInvalidArgument, "view '", v.name, "' at byte ", v.byte_offset,
                " with rank stride ", v.rank_stride_bytes,
                " is not aligned for ", v.dtype);
    PLO_ENFORCE(v.place == of.place, kInvalidArgument, "view '", v.name,
                "' is ", Name(v.place), ", '", of.name, "' is ",
                Name(of.place));
    location = {base.storage, base.begin + v.byte_offset,
                base.begin + v.byte_offset + bytes,
                base.rank_stride + v.rank_stride_bytes};
    return location;
  }

  void CheckBucket(const Bucket& bucket) const {
    const std::string what = "bucket '" + bucket.name + "'";
    for (VarId id :
         {bucket.param, bucket.param_slice, bucket.grad, bucket.final_grad,
          bucket.master, bucket.moment1, bucket.moment2}) {
      CheckRef(id, what);
    }
    int64_t end = 0;
    for (const Bucket::Member& member : bucket.members) {
      PLO_ENFORCE(program_.HasVar(member.param), kInvalidArgument, what,
                  " has the unknown var id ", member.param, " as a member");
      PLO_ENFORCE(member.offset >= end, kInvalidArgument, what, ": member '",
                  NameOf(member.param), "' at ", member.offset,
                  " starts before ", end);
      PLO_ENFORCE(member.numel >= 0 && member.offset <= bucket.numel &&
                      member.numel <= bucket.numel - member.offset,
                  kInvalidArgument, what, " has ", bucket.numel,
                  " elements, member '", NameOf(member.param), "' has ",
                  member.numel, " from ", member.offset, " on");
      end = member.offset + member.numel;
    }
  }

  // --- Ops ---

  void IndexOps() {
    for (int s = 0; s < kSectionCount; ++s) {
      for (const auto& op : program_.ops(static_cast<Section>(s))) {
        sections_[op->id] = static_cast<Section>(s);
      }
    }
  }

  void CheckOne(const Op& op) {
    for (const auto* slots : {&op.inputs, &op.outputs}) {
      for (const Slot& slot : *slots) {
        for (VarId id : slot.vars) {
          PLO_ENFORCE(program_.HasVar(id), kInvalidArgument, Describe(op),
                      ": slot '", slot.name, "' has the unknown var id ", id);
        }
      }
    }
    const OpSchema* schema = registry_.Find(op.type);
    if (schema == nullptr) {
      try {
        registry_.Get(op.type);
      } catch (const Error& error) {
        throw error.WithContext(Describe(op));
      }
    }
    CheckOp(registry_, op);
    CheckInferred(registry_, program_, op);
    CheckAliases(op, *schema);
    CheckPlaces(op, *schema);
    CheckAfter(op);
    for (const Slot& slot : op.inputs) {
      for (VarId id : slot.vars) CheckRead(op, id);
    }
    if (op.type == "copy_h2d") CheckReload(op);
    for (const Slot& slot : op.outputs) {
      for (VarId id : slot.vars) CheckWrite(op, id);
    }
    for (const Slot& slot : op.outputs) {
      for (VarId id : slot.vars) RecordWrite(op, id);
    }
  }

  void CheckAliases(const Op& op, const OpSchema& schema) const {
    for (const auto& [out_slot, in_slot] : schema.aliases) {
      const std::vector<VarId>& outs = op.Out(out_slot);
      const std::vector<VarId>& ins = op.In(in_slot);
      for (size_t i = 0; i < std::min(outs.size(), ins.size()); ++i) {
        const Location& out = at(outs[i]);
        const Location& in = at(ins[i]);
        PLO_ENFORCE(out.storage == in.storage && out.begin >= in.begin &&
                        out.end <= in.end,
                    kInvalidArgument, Describe(op), ": output ", out_slot, " '",
                    NameOf(outs[i]), "' must be input ", in_slot, " '",
                    NameOf(ins[i]), "' or a view of it");
      }
    }
  }

  void CheckPlaces(const Op& op, const OpSchema& schema) const {
    Place in_place = Place::kDevice;
    Place out_place = Place::kDevice;
    switch (schema.where) {
      case OpSchema::Where::kDeviceOnly:
        PLO_ENFORCE(op.stream != StreamKind::kHost, kInvalidArgument,
                    Describe(op), " has no host kernel for stream host");
        break;
      case OpSchema::Where::kDeviceOrHost:
        if (op.stream == StreamKind::kHost) {
          in_place = out_place = Place::kPinned;
        }
        break;
      case OpSchema::Where::kCopy:
        (op.type == "copy_h2d" ? in_place : out_place) = Place::kPinned;
        break;
    }
    CheckPlaces(op, op.inputs, in_place);
    CheckPlaces(op, op.outputs, out_place);
  }

  void CheckPlaces(const Op& op, const std::vector<Slot>& slots,
                   Place place) const {
    for (const Slot& slot : slots) {
      for (VarId id : slot.vars) {
        PLO_ENFORCE(var(id).place == place, kInvalidArgument, Describe(op),
                    " on stream ", Name(op.stream), ": ", slot.name, " '",
                    var(id).name, "' is ", Name(var(id).place), ", expected ",
                    Name(place));
      }
    }
  }

  void CheckAfter(const Op& op) const {
    for (OpId id : op.after) {
      PLO_ENFORCE(id != op.id, kInvalidArgument, Describe(op),
                  " waits for itself");
      const auto it = sections_.find(id);
      PLO_ENFORCE(it != sections_.end(), kInvalidArgument, Describe(op),
                  " waits for op #", id, ", which does not exist");
      PLO_ENFORCE(
          it->second != Section::kStartup && op.section != Section::kStartup,
          kInvalidArgument, Describe(op), " waits for op #", id,
          ": startup runs once, in order, and takes no control edges");
    }
  }

  // --- Data flow of temps ---

  bool IsTemp(VarId id) const {
    return var(at(id).storage).kind == VarKind::kTemp;
  }

  void CheckRead(const Op& op, VarId id) {
    if (!IsTemp(id)) return;
    const Location& location = at(id);
    const auto it = written_.find(location.storage);
    // An op may update a storage in place before all of it has been written
    // (padding is zeroed this way).
    const bool in_place = Writes(op, id);
    const bool written =
        it != written_.end() &&
        (in_place ? it->second.bytes.Overlaps(location.begin, location.end)
                  : it->second.bytes.Covers(location.begin, location.end));
    PLO_ENFORCE(written || location.begin == location.end, kInvalidArgument,
                Describe(op), " reads temp '", var(id).name,
                "' before all of it is written");
    PLO_ENFORCE(op.first_micro_only || op.section != Section::kMicro ||
                    it == written_.end() || !it->second.first_micro_only,
                kInvalidArgument, Describe(op), " reads temp '", var(id).name,
                "' in every micro-step, but only the first one writes it; it "
                "must be a state");
  }

  static bool Writes(const Op& op, VarId id) {
    for (const Slot& slot : op.outputs) {
      if (std::count(slot.vars.begin(), slot.vars.end(), id) > 0) return true;
    }
    return false;
  }

  bool ReadsOverlap(const Op& op, const Location& target) const {
    for (const Slot& slot : op.inputs) {
      for (VarId id : slot.vars) {
        const Location& source = at(id);
        if (source.storage == target.storage && source.begin < target.end &&
            target.begin < source.end) {
          return true;
        }
      }
    }
    return false;
  }

  void CheckWrite(const Op& op, VarId id) {
    const Location& location = at(id);
    const Var& storage = var(location.storage);
    PLO_ENFORCE(storage.kind != VarKind::kFeed, kInvalidArgument, Describe(op),
                " writes feed '", storage.name, "'");
    int times = 0;
    for (const Slot& slot : op.outputs) {
      times +=
          static_cast<int>(std::count(slot.vars.begin(), slot.vars.end(), id));
    }
    PLO_ENFORCE(times == 1, kInvalidArgument, Describe(op), " writes '",
                var(id).name, "' twice");
    if (storage.kind != VarKind::kTemp) return;
    const auto it = written_.find(location.storage);
    if (it == written_.end() ||
        !it->second.bytes.Overlaps(location.begin, location.end)) {
      return;
    }
    // Copies fill the bytes of a staging slot time and again.
    if (storage.category == MemoryCategory::kCommunication &&
        op.type == "copy_h2d") {
      return;
    }
    PLO_ENFORCE(ReadsOverlap(op, location), kInvalidArgument, Describe(op),
                " writes temp '", var(id).name, "' again (last written by ",
                Describe(program_.op(it->second.last_writer)),
                ") without reading it");
  }

  void RecordWrite(const Op& op, VarId id) {
    const Location& location = at(id);
    if (var(location.storage).place == Place::kPinned) {
      pinned_written_[location.storage].Add(location.begin, location.end);
    }
    if (var(location.storage).kind != VarKind::kTemp) return;
    Written& written = written_[location.storage];
    if (written.bytes.Overlaps(location.begin, location.end)) {
      written.first_micro_only &= op.first_micro_only;
    } else {
      written.first_micro_only |= op.first_micro_only;
    }
    written.bytes.Add(location.begin, location.end);
    written.last_writer = op.id;
  }

  // Pinned bytes are only ever written by copies and host ops (CheckPlaces).
  void CheckReload(const Op& op) const {
    for (const Slot& slot : op.inputs) {
      for (VarId id : slot.vars) {
        const Location& location = at(id);
        const auto it = pinned_written_.find(location.storage);
        PLO_ENFORCE(it != pinned_written_.end() &&
                        it->second.Covers(location.begin, location.end),
                    kInvalidArgument, Describe(op), " reloads '", var(id).name,
                    "', which no earlier copy_d2h or host op has written");
      }
    }
  }

  struct Written {
    ByteRanges bytes;
    OpId last_writer = kNoId;
    // Some bytes were written by an op of the first micro-step only.
    bool first_micro_only = false;
  };

  const Program& program_;
  const OpRegistry& registry_;
  std::vector<Location> locations_;  // by var id
  std::unordered_map<OpId, Section> sections_;
  std::unordered_map<VarId, Written> written_;            // temps, by storage
  std::unordered_map<VarId, ByteRanges> pinned_written_;  // by storage
};

constexpr uint64_t kFnvBasis = 14695981039346656037ull;

uint64_t Fnv1a(std::string_view bytes, uint64_t hash = kFnvBasis) {
  for (unsigned char c : bytes) hash = (hash ^ c) * 1099511628211ull;
  return hash;
}

}  // namespace

void Verify(const Program& program, const OpRegistry& registry) {
  Verifier(program, registry).Run();
}

uint64_t CollectiveHash(const Program& program, const OpRegistry& registry) {
  uint64_t hash = Fnv1a(StrCat("world_size ", program.world_size,
                               " accumulate_steps ", program.accumulate_steps));
  const auto add_operands = [&](const std::vector<Slot>& slots) {
    for (const Slot& slot : slots) {
      for (VarId id : slot.vars) {
        const Var& var = program.var(id);
        hash = Fnv1a(StrCat(slot.name, " ", var.dtype, " ", var.bytes(), ";"),
                     hash);
      }
    }
  };
  for (int s = 0; s < kSectionCount; ++s) {
    for (const auto& op : program.ops(static_cast<Section>(s))) {
      if (!registry.Get(op->type).collective) continue;
      hash = Fnv1a(StrCat(Name(op->section), " ", op->type, " ",
                          op->first_micro_only, ";"),
                   hash);
      add_operands(op->inputs);
      add_operands(op->outputs);
      for (const auto& [name, value] : op->attrs) {
        hash = Fnv1a(StrCat(name, "=", AttrText(value), ";"), hash);
      }
    }
  }
  return hash;
}

uint64_t ProgramHash(const Program& program) {
  return Fnv1a(PrintProgram(program));
}

}  // namespace plo
