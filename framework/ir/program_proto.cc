// Program <-> framework/program.proto: the only file that sees the generated
// classes.
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/text_format.h>

#include <optional>

#include "framework/ir/program_text.h"
#include "framework/ir/text_chars.h"
#include "framework/ir/verifier.h"
#include "framework/program.pb.h"

namespace plo {
namespace {

constexpr std::string_view kFormat = "plo.program";
constexpr int kVersion = 1;

// --- To proto ---

void SetAttr(proto::Attr& out, const Attr& attr) {
  struct Visitor {
    proto::Attr& out;
    void operator()(bool v) { out.set_bool_value(v); }
    void operator()(int64_t v) { out.set_int_value(v); }
    void operator()(double v) { out.set_float_value(v); }
    void operator()(const std::string& v) { out.set_string_value(v); }
    void operator()(const std::vector<int64_t>& v) {
      auto& values = *out.mutable_ints_value()->mutable_values();
      values.Assign(v.begin(), v.end());
    }
    void operator()(const std::vector<double>& v) {
      auto& values = *out.mutable_floats_value()->mutable_values();
      values.Assign(v.begin(), v.end());
    }
    void operator()(const std::vector<std::string>& v) {
      auto& values = *out.mutable_strings_value()->mutable_values();
      values.Assign(v.begin(), v.end());
    }
  };
  std::visit(Visitor{out}, attr);
}

void ToProto(const Var& var, proto::Var& out) {
  out.set_id(var.id);
  out.set_name(var.name);
  out.set_dtype(std::string(DTypeName(var.dtype)));
  for (int64_t dim : var.shape.dims()) out.add_shape(dim);
  out.set_kind(std::string(Name(var.kind)));
  out.set_place(std::string(Name(var.place)));
  out.set_category(std::string(Name(var.category)));
  if (var.view_of != kNoId) out.set_view_of(var.view_of);
  out.set_byte_offset(var.byte_offset);
  out.set_rank_stride_bytes(var.rank_stride_bytes);
  out.set_relation(std::string(Name(var.relation)));
  if (var.related_to != kNoId) out.set_related_to(var.related_to);
  out.set_region(var.region);
  proto::ParamAttrs& param = *out.mutable_param();
  param.set_trainable(var.param.trainable);
  param.set_need_clip(var.param.need_clip);
  param.set_weight_decay(var.param.weight_decay);
  param.set_lr_scale(var.param.lr_scale);
}

void ToProto(const Op& op, proto::Op& out) {
  out.set_id(op.id);
  out.set_type(op.type);
  for (const Slot& slot : op.inputs) {
    proto::Slot& to = *out.add_inputs();
    to.set_name(slot.name);
    to.mutable_vars()->Assign(slot.vars.begin(), slot.vars.end());
  }
  for (const Slot& slot : op.outputs) {
    proto::Slot& to = *out.add_outputs();
    to.set_name(slot.name);
    to.mutable_vars()->Assign(slot.vars.begin(), slot.vars.end());
  }
  for (const auto& [name, value] : op.attrs) {
    proto::Attr& attr = *out.add_attrs();
    attr.set_name(name);
    SetAttr(attr, value);
  }
  out.set_role(std::string(Name(op.role)));
  out.set_section(std::string(Name(op.section)));
  out.set_stream(std::string(Name(op.stream)));
  out.set_region(op.region);
  out.mutable_after()->Assign(op.after.begin(), op.after.end());
  out.set_first_micro_only(op.first_micro_only);
  if (op.random_id != kNoId) out.set_random_id(op.random_id);
  out.set_location(op.location);
}

void ToProto(const Bucket& bucket, proto::Bucket& out) {
  out.set_name(bucket.name);
  for (const Bucket::Member& member : bucket.members) {
    proto::BucketMember& to = *out.add_members();
    to.set_param(member.param);
    to.set_offset(member.offset);
    to.set_numel(member.numel);
  }
  out.set_numel(bucket.numel);
  out.set_shard_numel(bucket.shard_numel);
  out.set_trainable(bucket.trainable);
  out.set_sliced(bucket.sliced);
  if (bucket.param != kNoId) out.set_param(bucket.param);
  if (bucket.param_slice != kNoId) out.set_param_slice(bucket.param_slice);
  if (bucket.grad != kNoId) out.set_grad(bucket.grad);
  if (bucket.final_grad != kNoId) out.set_final_grad(bucket.final_grad);
  if (bucket.master != kNoId) out.set_master(bucket.master);
  if (bucket.moment1 != kNoId) out.set_moment1(bucket.moment1);
  if (bucket.moment2 != kNoId) out.set_moment2(bucket.moment2);
}

proto::Program ToProto(const Program& program) {
  proto::Program out;
  out.set_format(std::string(kFormat));
  out.set_version(kVersion);
  out.set_name(program.name);
  out.set_seed(program.seed);
  out.set_world_size(program.world_size);
  out.set_accumulate_steps(program.accumulate_steps);
  for (const auto& pass : program.applied_passes) out.add_applied_passes(pass);
  if (program.loss != kNoId) out.set_loss(program.loss);
  if (program.loss_count != kNoId) out.set_loss_count(program.loss_count);
  if (program.mean_loss != kNoId) out.set_mean_loss(program.mean_loss);
  if (program.step_record != kNoId) out.set_step_record(program.step_record);
  if (program.loss_scale != kNoId) out.set_loss_scale(program.loss_scale);
  for (const Bucket& bucket : program.buckets) {
    ToProto(bucket, *out.add_buckets());
  }
  for (VarId id : program.vars()) ToProto(program.var(id), *out.add_vars());
  for (int s = 0; s < kSectionCount; ++s) {
    for (const auto& op : program.ops(static_cast<Section>(s))) {
      ToProto(*op, *out.add_ops());
    }
  }
  return out;
}

// --- From proto ---

Attr FromProto(const proto::Attr& attr) {
  switch (attr.value_case()) {
    case proto::Attr::kBoolValue:
      return attr.bool_value();
    case proto::Attr::kIntValue:
      return int64_t{attr.int_value()};
    case proto::Attr::kFloatValue:
      return attr.float_value();
    case proto::Attr::kStringValue:
      return attr.string_value();
    case proto::Attr::kIntsValue: {
      const auto& v = attr.ints_value().values();
      return std::vector<int64_t>(v.begin(), v.end());
    }
    case proto::Attr::kFloatsValue: {
      const auto& v = attr.floats_value().values();
      return std::vector<double>(v.begin(), v.end());
    }
    case proto::Attr::kStringsValue: {
      const auto& v = attr.strings_value().values();
      return std::vector<std::string>(v.begin(), v.end());
    }
    case proto::Attr::VALUE_NOT_SET:
      break;
  }
  PLO_THROW(kDataLoss, "attribute '", attr.name(), "' has no value");
}

Var FromProto(const proto::Var& in) {
  Var var;
  var.id = in.id();
  var.name = in.name();
  var.dtype = ParseDType(in.dtype());
  var.shape = Shape(std::vector<int64_t>(in.shape().begin(), in.shape().end()));
  var.kind = ParseEnum<VarKind>(in.kind());
  var.place = ParseEnum<Place>(in.place());
  var.category = ParseEnum<MemoryCategory>(in.category());
  if (in.has_view_of()) var.view_of = in.view_of();
  var.byte_offset = in.byte_offset();
  var.rank_stride_bytes = in.rank_stride_bytes();
  var.relation = ParseEnum<Relation>(in.relation());
  if (in.has_related_to()) var.related_to = in.related_to();
  var.region = in.region();
  var.param.trainable = in.param().trainable();
  var.param.need_clip = in.param().need_clip();
  var.param.weight_decay = in.param().weight_decay();
  var.param.lr_scale = in.param().lr_scale();
  return var;
}

Slot FromProto(const proto::Slot& in) {
  return {in.name(), std::vector<VarId>(in.vars().begin(), in.vars().end())};
}

void AddOp(Program& program, const proto::Op& in) {
  OpSpec spec;
  spec.type = in.type();
  for (const auto& slot : in.inputs()) spec.inputs.push_back(FromProto(slot));
  for (const auto& slot : in.outputs()) spec.outputs.push_back(FromProto(slot));
  for (const auto& attr : in.attrs()) {
    spec.attrs.Set(attr.name(), FromProto(attr));
  }
  spec.role = ParseEnum<Role>(in.role());
  spec.stream = ParseEnum<StreamKind>(in.stream());
  spec.region = in.region();
  spec.location = in.location();
  spec.first_micro_only = in.first_micro_only();
  if (in.has_random_id()) spec.random_id = in.random_id();
  program.AppendWithId(ParseEnum<Section>(in.section()), in.id(),
                       std::move(spec),
                       std::vector<OpId>(in.after().begin(), in.after().end()));
}

// Refers to a var that exists, or is absent.
VarId VarRef(const Program& program, bool has, VarId id) {
  if (!has) return kNoId;
  program.var(id);
  return id;
}

Bucket FromProto(const Program& program, const proto::Bucket& in) {
  Bucket bucket;
  bucket.name = in.name();
  for (const auto& member : in.members()) {
    bucket.members.push_back({VarRef(program, true, member.param()),
                              member.offset(), member.numel()});
  }
  bucket.numel = in.numel();
  bucket.shard_numel = in.shard_numel();
  bucket.trainable = in.trainable();
  bucket.sliced = in.sliced();
  bucket.param = VarRef(program, in.has_param(), in.param());
  bucket.param_slice = VarRef(program, in.has_param_slice(), in.param_slice());
  bucket.grad = VarRef(program, in.has_grad(), in.grad());
  bucket.final_grad = VarRef(program, in.has_final_grad(), in.final_grad());
  bucket.master = VarRef(program, in.has_master(), in.master());
  bucket.moment1 = VarRef(program, in.has_moment1(), in.moment1());
  bucket.moment2 = VarRef(program, in.has_moment2(), in.moment2());
  return bucket;
}

// Far above real programs: an id of a corrupt file must not make AddVarWithId
// reserve gigabytes.
constexpr VarId kMaxVarId = 1 << 26;

Program FromProto(const proto::Program& in) {
  Program program;
  program.name = in.name();
  program.seed = in.seed();
  program.world_size = in.world_size();
  program.accumulate_steps = in.accumulate_steps();
  program.applied_passes = {in.applied_passes().begin(),
                            in.applied_passes().end()};
  for (const auto& var : in.vars()) {
    PLO_ENFORCE(var.id() < kMaxVarId, kDataLoss, "var id ", var.id());
    program.AddVarWithId(FromProto(var));
  }
  for (VarId id : program.vars()) {
    const Var& var = program.var(id);
    VarRef(program, var.view_of != kNoId, var.view_of);
    VarRef(program, var.related_to != kNoId, var.related_to);
  }
  for (const auto& op : in.ops()) AddOp(program, op);
  program.loss = VarRef(program, in.has_loss(), in.loss());
  program.loss_count = VarRef(program, in.has_loss_count(), in.loss_count());
  program.mean_loss = VarRef(program, in.has_mean_loss(), in.mean_loss());
  program.step_record = VarRef(program, in.has_step_record(), in.step_record());
  program.loss_scale = VarRef(program, in.has_loss_scale(), in.loss_scale());
  for (const auto& bucket : in.buckets()) {
    program.buckets.push_back(FromProto(program, bucket));
  }
  return program;
}

// Parse errors travel in the exception, not to stderr.
class ErrorCollector : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& text) override {
    if (message.empty()) {
      message = StrCat("line ", line + 1, ", column ", column + 1, ": ", text);
    }
  }
  std::string message;
};

// The first field of the binary form: tag 1, length-delimited, kFormat.
std::string BinaryPrefix() {
  return StrCat('\x0a', static_cast<char>(kFormat.size()), kFormat);
}
constexpr std::string_view kTextPrefix = "format: \"plo.program\"";

}  // namespace

bool LooksLikeProto(std::string_view bytes) {
  const std::string prefix = BinaryPrefix();
  return bytes.substr(0, prefix.size()) == prefix ||
         bytes.substr(0, kTextPrefix.size()) == kTextPrefix;
}

std::string SerializeProto(const Program& program, bool text) {
  proto::Program message = ToProto(program);
  std::string out;
  if (text) {
    google::protobuf::TextFormat::PrintToString(message, &out);
  } else {
    message.set_checksum(ProgramHash(program));
    message.SerializeToString(&out);
  }
  return out;
}

Program ParseProto(std::string_view bytes) {
  const google::protobuf::LogSilencer silence;
  proto::Program message;
  const bool text = bytes.substr(0, kTextPrefix.size()) == kTextPrefix;
  if (text) {
    ErrorCollector errors;
    google::protobuf::TextFormat::Parser parser;
    parser.RecordErrorsTo(&errors);
    PLO_ENFORCE(parser.ParseFromString(std::string(bytes), &message), kDataLoss,
                "corrupt program file: ", errors.message);
  } else {
    const bool parsed =
        message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
    // The version stands near the start and is worth more than the parse: a
    // newer file may not parse at all.
    PLO_ENFORCE(parsed || message.version() > kVersion, kDataLoss,
                "corrupt program file: not a valid protobuf message of ",
                bytes.size(), " bytes");
  }
  PLO_ENFORCE(message.format() == kFormat, kDataLoss,
              "corrupt program file: not a program (format '", message.format(),
              "')");
  PLO_ENFORCE(message.version() <= kVersion, kFailedPrecondition,
              "the program file has version ", message.version(),
              ", this build reads up to version ", kVersion);
  PLO_ENFORCE(message.version() > 0, kDataLoss,
              "corrupt program file: no version");
  PLO_ENFORCE(text || message.has_checksum(), kDataLoss,
              "corrupt program file: no checksum");
  std::optional<Program> program;
  try {
    program = FromProto(message);
  } catch (const Error& error) {
    PLO_THROW(kDataLoss, "corrupt program file: ", error.message());
  }
  PLO_ENFORCE(
      !message.has_checksum() || message.checksum() == ProgramHash(*program),
      kDataLoss, "corrupt program file: the checksum does not match");
  return std::move(*program);
}

}  // namespace plo
