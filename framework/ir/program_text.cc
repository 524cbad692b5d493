// The printer of the text form, and files. The parser: program_parse.cc.
#include "framework/ir/program_text.h"

#include <charconv>
#include <cmath>

#include "framework/ir/file_io.h"
#include "framework/ir/text_chars.h"

namespace plo {
namespace {

class Printer {
 public:
  explicit Printer(const Program& program) : program_(program) {}

  std::string PrintAttr(const Attr& value) {
    std::visit(AttrPrinter{*this}, value);
    return std::move(out_);
  }

  std::string Print() {
    out_.reserve(program_.op_count() * 256);
    Put("program ");
    PutWord(program_.name);
    Put(" {\n");
    PutHeader();
    for (VarId id : program_.vars()) PutVarLine(program_.var(id));
    for (const Bucket& bucket : program_.buckets) PutBucket(bucket);
    for (int s = 0; s < kSectionCount; ++s) {
      const auto section = static_cast<Section>(s);
      if (program_.ops(section).empty()) continue;
      Put("\n  ");
      Put(Name(section));
      Put(" {\n");
      for (const auto& op : program_.ops(section)) PutOp(*op);
      Put("  }\n");
    }
    Put("}\n");
    return std::move(out_);
  }

 private:
  void Put(std::string_view text) { out_.append(text); }
  void PutInt(int64_t value) {
    char buffer[24];
    const auto end = std::to_chars(buffer, std::end(buffer), value).ptr;
    out_.append(buffer, end);
  }

  // Shortest digits that read back as the same double, always with a mark
  // that tells it from an int.
  void PutFloat(double value) {
    if (std::isnan(value)) return Put("nan");
    if (std::isinf(value)) return Put(value > 0 ? "inf" : "-inf");
    char buffer[40];
    const auto end = std::to_chars(buffer, std::end(buffer), value).ptr;
    const std::string_view digits(buffer, end - buffer);
    Put(digits);
    if (digits.find_first_of(".e") == std::string_view::npos) Put(".0");
  }

  void PutQuoted(std::string_view text) {
    out_ += '"';
    for (char c : text) {
      if (c == '"' || c == '\\') {
        out_ += '\\';
        out_ += c;
      } else if (c == '\n') {
        out_ += "\\n";
      } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
        constexpr char kHex[] = "0123456789abcdef";
        out_ += "\\x";
        out_ += kHex[(c >> 4) & 15];
        out_ += kHex[c & 15];
      } else {
        out_ += c;
      }
    }
    out_ += '"';
  }

  void PutWord(std::string_view word) {
    if (IsBareWord(word)) {
      Put(word);
    } else {
      PutQuoted(word);
    }
  }

  // A var that does not exist prints as "?id", which does not parse: dumps of
  // broken programs must not throw.
  void PutVar(VarId id) {
    if (program_.HasVar(id)) {
      PutWord(program_.var(id).name);
    } else {
      Put("?");
      PutInt(id);
    }
  }

  void PutField(std::string_view key, int64_t value, int64_t fallback) {
    if (value == fallback) return;
    Put(" ");
    Put(key);
    Put("=");
    PutInt(value);
  }
  void PutVarField(std::string_view key, VarId id) {
    if (id == kNoId) return;
    Put(" ");
    Put(key);
    Put("=");
    PutVar(id);
  }
  void PutFalse(std::string_view key, bool value) {
    if (value) return;
    Put(" ");
    Put(key);
    Put("=false");
  }
  void PutWordField(std::string_view key, std::string_view word) {
    Put(" ");
    Put(key);
    Put("=");
    PutWord(word);
  }

  void PutHeader() {
    const auto int_line = [&](std::string_view key, int64_t value,
                              int64_t fallback) {
      if (value == fallback) return;
      Put(" ");
      PutField(key, value, fallback);
      Put("\n");
    };
    const auto var_line = [&](std::string_view key, VarId id) {
      if (id == kNoId) return;
      Put(" ");
      PutVarField(key, id);
      Put("\n");
    };
    int_line("seed", program_.seed, 0);
    int_line("world_size", program_.world_size, 1);
    int_line("accumulate_steps", program_.accumulate_steps, 1);
    for (const std::string& pass : program_.applied_passes) {
      Put("  applied=");
      PutQuoted(pass);
      Put("\n");
    }
    var_line("loss", program_.loss);
    var_line("loss_count", program_.loss_count);
    var_line("mean_loss", program_.mean_loss);
    var_line("step_record", program_.step_record);
    var_line("loss_scale", program_.loss_scale);
  }

  void PutVarLine(const Var& var) {
    Put("  ");
    Put(Name(var.kind));
    Put(" ");
    PutWord(var.name);
    Put(" ");
    Put(DTypeName(var.dtype));
    PutList(var.shape.dims(), [&](int64_t dim) { PutInt(dim); });
    if (var.place != Place::kDevice) PutWordField("place", Name(var.place));
    if (var.category != DefaultCategory(var.kind)) {
      PutWordField("category", Name(var.category));
    }
    if (var.is_view()) {
      PutVarField("view", var.view_of);
      Put("+");
      PutInt(var.byte_offset);
      if (var.rank_stride_bytes != 0) {
        Put("+rank*");
        PutInt(var.rank_stride_bytes);
      }
    }
    if (var.relation != Relation::kNone) {
      PutVarField(Name(var.relation), var.related_to);
    }
    if (!var.region.empty()) PutWordField("region", var.region);
    PutFalse("trainable", var.param.trainable);
    PutFalse("need_clip", var.param.need_clip);
    PutFalse("weight_decay", var.param.weight_decay);
    if (var.param.lr_scale != 1.0) {
      Put(" lr_scale=");
      PutFloat(var.param.lr_scale);
    }
    Put("\n");
  }

  void PutBucket(const Bucket& bucket) {
    Put("  bucket ");
    PutWord(bucket.name);
    PutField("numel", bucket.numel, 0);
    PutField("shard_numel", bucket.shard_numel, 0);
    PutFalse("trainable", bucket.trainable);
    PutFalse("sliced", bucket.sliced);
    PutVarField("param", bucket.param);
    PutVarField("param_slice", bucket.param_slice);
    PutVarField("grad", bucket.grad);
    PutVarField("final_grad", bucket.final_grad);
    PutVarField("master", bucket.master);
    PutVarField("moment1", bucket.moment1);
    PutVarField("moment2", bucket.moment2);
    Put(" members=");
    PutList(bucket.members, [&](const Bucket::Member& member) {
      PutVar(member.param);
      Put("+");
      PutInt(member.offset);
      Put(":");
      PutInt(member.numel);
    });
    Put("\n");
  }

  template <typename T, typename PutItem>
  void PutList(const std::vector<T>& items, PutItem put_item) {
    Put("[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) Put(", ");
      put_item(items[i]);
    }
    Put("]");
  }

  void PutSlots(const std::vector<Slot>& slots) {
    Put("(");
    for (size_t i = 0; i < slots.size(); ++i) {
      if (i > 0) Put(", ");
      PutWord(slots[i].name);
      Put("=");
      if (slots[i].vars.size() == 1) {
        PutVar(slots[i].vars[0]);
      } else {
        PutList(slots[i].vars, [&](VarId id) { PutVar(id); });
      }
    }
    Put(")");
  }

  struct AttrPrinter {
    Printer& p;
    void operator()(bool v) { p.Put(v ? "true" : "false"); }
    void operator()(int64_t v) { p.PutInt(v); }
    void operator()(double v) { p.PutFloat(v); }
    void operator()(const std::string& v) { p.PutQuoted(v); }
    void operator()(const std::vector<int64_t>& v) {
      if (v.empty()) p.Put("ints");
      p.PutList(v, [&](int64_t x) { p.PutInt(x); });
    }
    void operator()(const std::vector<double>& v) {
      if (v.empty()) p.Put("floats");
      p.PutList(v, [&](double x) { p.PutFloat(x); });
    }
    void operator()(const std::vector<std::string>& v) {
      if (v.empty()) p.Put("strings");
      p.PutList(v, [&](const std::string& x) { p.PutQuoted(x); });
    }
  };

  void PutOp(const Op& op) {
    Put("    #");
    PutInt(op.id);
    Put(" ");
    PutWord(op.type);
    PutSlots(op.inputs);
    Put(" -> ");
    PutSlots(op.outputs);
    if (!op.attrs.empty()) {
      Put(" {");
      bool first = true;
      for (const auto& [name, value] : op.attrs) {
        if (!first) Put(", ");
        first = false;
        PutWord(name);
        Put("=");
        std::visit(AttrPrinter{*this}, value);
      }
      Put("}");
    }
    if (op.role != DefaultRole(op.section)) {
      PutWordField("role", Name(op.role));
    }
    if (op.stream != StreamKind::kCompute) {
      PutWordField("stream", Name(op.stream));
    }
    if (op.first_micro_only) Put(" first_micro_only=true");
    if (op.random_id != kNoId) {
      Put(" random=");
      PutInt(op.random_id);
    }
    if (!op.after.empty()) {
      Put(" after=");
      PutList(op.after, [&](OpId id) {
        Put("#");
        PutInt(id);
      });
    }
    if (!op.region.empty()) PutWordField("region", op.region);
    if (!op.location.empty()) {
      Put(" at=");
      PutQuoted(op.location);
    }
    Put("\n");
  }

  const Program& program_;
  std::string out_;
};

bool EndsWith(const std::string& text, std::string_view suffix) {
  return text.size() >= suffix.size() &&
         text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

}  // namespace

std::string AttrText(const Attr& value) {
  static const Program kNone;
  return Printer(kNone).PrintAttr(value);
}

std::string PrintProgram(const Program& program) {
  return Printer(program).Print();
}

Program ReadProgram(std::string_view bytes, const std::string& name) {
  try {
    if (LooksLikeProto(bytes)) return ParseProto(bytes);
    PLO_ENFORCE(!bytes.empty(), kDataLoss, "the program file is empty");
    PLO_ENFORCE(IsText(bytes), kDataLoss,
                "corrupt program file: neither text nor a protobuf message "
                "that starts as a program does");
    return ParseProgram(bytes);
  } catch (const Error& error) {
    throw error.WithContext(name);
  }
}

Program LoadProgram(const std::string& path) {
  return ReadProgram(ReadFile(path), path);
}

void SaveProgram(const Program& program, const std::string& path) {
  std::string bytes;
  if (EndsWith(path, ".pb")) {
    bytes = SerializeProto(program);
  } else if (EndsWith(path, ".pbtxt") || EndsWith(path, ".textproto")) {
    bytes = SerializeProto(program, /*text=*/true);
  } else {
    bytes = PrintProgram(program);
  }
  WriteFile(path, bytes);
}

}  // namespace plo
