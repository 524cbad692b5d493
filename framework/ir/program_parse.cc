// The parser of the text form: recursive descent without a token list. Var
// names are resolved at the end of each op line, so vars come before ops;
// header fields, views and relations may name vars declared later.
#include <functional>

#include "framework/ir/program_text.h"
#include "framework/ir/text_chars.h"
#include "framework/ir/text_scanner.h"

namespace plo {
namespace {

class Parser : public TextScanner {
 public:
  explicit Parser(std::string_view text) : TextScanner(text) {}

  Program Parse() {
    SkipBlank();
    ExpectKeyword("program");
    program_.name = Word("a program name");
    Expect('{');
    SkipBlank();
    while (!Peek('}')) {
      ParseStatement();
      SkipBlank();
    }
    Expect('}');
    SkipBlank();
    if (pos_ != text_.size()) Fail("text after the end of the program");
    for (const auto& resolve : at_end_) resolve();
    return std::move(program_);
  }

 private:
  template <typename Enum>
  Enum EnumWord(std::string_view what) {
    SkipSpace();
    const size_t start = pos_;
    const std::string word = Word(what);
    return Located(start, [&] { return ParseEnum<Enum>(word); });
  }

  // --- Vars by name ---

  VarId Resolve(const std::string& name, size_t start) {
    const VarId id = program_.FindVar(name);
    if (id == kNoId) FailAt(start, StrCat("no var named '", name, "'"));
    return id;
  }
  VarId VarName() {
    SkipSpace();
    const size_t start = pos_;
    return Resolve(Word("a var name"), start);
  }
  // For fields that may name a var declared further down.
  void VarLater(std::function<void(VarId)> set) {
    SkipSpace();
    const size_t start = pos_;
    std::string name = Word("a var name");
    at_end_.push_back([this, start, name = std::move(name),
                       set = std::move(set)] { set(Resolve(name, start)); });
  }

  // --- Statements ---

  void ParseStatement() {
    const size_t start = pos_;
    const std::string word = Word("a statement");
    if (Accept('=')) return ParseHeader(word, start);
    if (word == "bucket") return ParseBucket();
    for (int s = 0; s < kSectionCount; ++s) {
      const auto section = static_cast<Section>(s);
      if (word == Name(section)) return ParseSection(section);
    }
    const auto kind = Located(start, [&] { return ParseEnum<VarKind>(word); });
    ParseVar(kind);
  }

  void EndLine() {
    SkipSpace();
    if (!Peek('\n') && !Peek('}') && !AtEnd()) {
      Fail(StrCat("unexpected '", text_[pos_], "'"));
    }
  }

  void ParseHeader(const std::string& key, size_t start) {
    VarId Program::*var_field = nullptr;
    if (key == "seed") {
      program_.seed = Int();
    } else if (key == "world_size") {
      program_.world_size = Int32();
    } else if (key == "accumulate_steps") {
      program_.accumulate_steps = Int32();
    } else if (key == "applied") {
      program_.applied_passes.push_back(Quoted());
    } else if (key == "loss") {
      var_field = &Program::loss;
    } else if (key == "loss_count") {
      var_field = &Program::loss_count;
    } else if (key == "mean_loss") {
      var_field = &Program::mean_loss;
    } else if (key == "step_record") {
      var_field = &Program::step_record;
    } else if (key == "loss_scale") {
      var_field = &Program::loss_scale;
    } else {
      FailAt(start, StrCat("unknown program field '", key, "'"));
    }
    if (var_field != nullptr) {
      VarLater([this, var_field](VarId id) { program_.*var_field = id; });
    }
    EndLine();
  }

  // Calls field(key, start) for each "key=value" up to the end of the line.
  template <typename Field>
  void ParseFields(Field field) {
    SkipSpace();
    while (!AtEnd() && (IsWordChar(text_[pos_]) || Peek('"'))) {
      const size_t start = pos_;
      const std::string key = Word("a field");
      Expect('=');
      field(key, start);
      SkipSpace();
    }
    EndLine();
  }

  void ParseVar(VarKind kind) {
    SkipSpace();
    const size_t start = pos_;
    Var var;
    var.kind = kind;
    var.category = DefaultCategory(kind);
    var.name = Word("a var name");
    SkipSpace();
    const size_t type_start = pos_;
    const std::string dtype = Word("an element type");
    var.dtype = Located(type_start, [&] { return ParseDType(dtype); });
    var.shape = Shape(List([&] { return Int(); }));
    const VarId id =
        Located(start, [&] { return program_.AddVar(std::move(var)); });
    ParseFields([&](const std::string& key, size_t key_start) {
      ParseVarField(id, key, key_start);
    });
  }

  void ParseVarField(VarId id, const std::string& key, size_t start) {
    Var& var = program_.mutable_var(id);
    if (key == "place") {
      var.place = EnumWord<Place>("a place");
    } else if (key == "category") {
      var.category = EnumWord<MemoryCategory>("a category");
    } else if (key == "region") {
      var.region = Word("a region");
    } else if (key == "trainable") {
      var.param.trainable = Bool();
    } else if (key == "need_clip") {
      var.param.need_clip = Bool();
    } else if (key == "weight_decay") {
      var.param.weight_decay = Bool();
    } else if (key == "lr_scale") {
      var.param.lr_scale = Float();
    } else if (key == "view") {
      VarLater([this, id](VarId of) { program_.mutable_var(id).view_of = of; });
      Expect('+');
      var.byte_offset = Int();
      if (Accept('+')) {
        ExpectKeyword("rank");
        Expect('*');
        var.rank_stride_bytes = Int();
      }
    } else {
      var.relation = ParseRelation(key, start);
      VarLater(
          [this, id](VarId of) { program_.mutable_var(id).related_to = of; });
    }
  }

  Relation ParseRelation(const std::string& key, size_t start) {
    for (Relation relation :
         {Relation::kGradOf, Relation::kMasterOf, Relation::kMoment1Of,
          Relation::kMoment2Of, Relation::kShardOf, Relation::kRecomputeOf}) {
      if (key == Name(relation)) return relation;
    }
    FailAt(start, StrCat("unknown var field '", key, "'"));
  }

  void ParseBucket() {
    const size_t index = program_.buckets.size();
    program_.buckets.emplace_back();
    program_.buckets[index].name = Word("a bucket name");
    ParseFields([&](const std::string& key, size_t start) {
      Bucket& bucket = program_.buckets[index];
      if (key == "numel") {
        bucket.numel = Int();
      } else if (key == "shard_numel") {
        bucket.shard_numel = Int();
      } else if (key == "trainable") {
        bucket.trainable = Bool();
      } else if (key == "sliced") {
        bucket.sliced = Bool();
      } else if (key == "members") {
        bucket.members = List([&] { return ParseMember(); });
      } else {
        VarId Bucket::*field = ParseBucketVar(key, start);
        bucket.*field = VarName();
      }
    });
  }

  Bucket::Member ParseMember() {
    Bucket::Member member;
    member.param = VarName();
    Expect('+');
    member.offset = Int();
    Expect(':');
    member.numel = Int();
    return member;
  }

  VarId Bucket::*ParseBucketVar(const std::string& key, size_t start) {
    if (key == "param") return &Bucket::param;
    if (key == "param_slice") return &Bucket::param_slice;
    if (key == "grad") return &Bucket::grad;
    if (key == "final_grad") return &Bucket::final_grad;
    if (key == "master") return &Bucket::master;
    if (key == "moment1") return &Bucket::moment1;
    if (key == "moment2") return &Bucket::moment2;
    FailAt(start, StrCat("unknown bucket field '", key, "'"));
  }

  // --- Ops ---

  void ParseSection(Section section) {
    Expect('{');
    SkipBlank();
    while (!Peek('}')) {
      ParseOp(section);
      SkipBlank();
    }
    Expect('}');
    EndLine();
  }

  std::vector<Slot> ParseSlots() {
    std::vector<Slot> slots;
    Expect('(');
    if (Accept(')')) return slots;
    do {
      Slot slot;
      slot.name = Word("a slot name");
      Expect('=');
      SkipSpace();
      if (Peek('[')) {
        slot.vars = List([&] { return VarName(); });
      } else {
        slot.vars = {VarName()};
      }
      slots.push_back(std::move(slot));
    } while (Accept(','));
    Expect(')');
    return slots;
  }

  // Numbers are floats if they have a point or an exponent, or are not finite.
  static bool LooksLikeFloat(std::string_view digits) {
    return digits.find_first_of(".en") != std::string_view::npos;
  }

  Attr ParseAttr() {
    SkipSpace();
    if (Peek('"')) return Quoted();
    if (Peek('[')) return ParseAttrList();
    const size_t start = pos_;
    const std::string word(Digits());
    if (word == "true") return true;
    if (word == "false") return false;
    if (word == "ints" || word == "floats" || word == "strings") {
      Expect('[');
      Expect(']');
      if (word == "ints") return std::vector<int64_t>();
      if (word == "floats") return std::vector<double>();
      return std::vector<std::string>();
    }
    pos_ = start;
    if (LooksLikeFloat(word)) return Float();
    return Int();
  }

  Attr ParseAttrList() {
    const size_t start = pos_;
    Expect('[');
    SkipSpace();
    if (Peek(']')) {
      Fail("an empty list needs its type: ints[], floats[] or strings[]");
    }
    const bool strings = Peek('"');
    const bool floats = !strings && LooksLikeFloat(Digits());
    pos_ = start;
    if (strings) return List([&] { return Quoted(); });
    if (floats) return List([&] { return Float(); });
    return List([&] { return Int(); });
  }

  void ParseOp(Section section) {
    const size_t start = pos_;
    // An op written by hand may leave its id out.
    OpId id = next_op_id_;
    if (Peek('#')) id = OpNumber();
    OpSpec spec;
    spec.type = Word("an op");
    spec.role = DefaultRole(section);
    spec.inputs = ParseSlots();
    Expect('-');
    Expect('>');
    spec.outputs = ParseSlots();
    if (Accept('{')) {
      do {
        std::string name = Word("an attribute");
        Expect('=');
        spec.attrs.Set(std::move(name), ParseAttr());
      } while (Accept(','));
      Expect('}');
    }
    std::vector<OpId> after;
    ParseFields([&](const std::string& key, size_t key_start) {
      if (key == "role") {
        spec.role = EnumWord<Role>("a role");
      } else if (key == "stream") {
        spec.stream = EnumWord<StreamKind>("a stream");
      } else if (key == "first_micro_only") {
        spec.first_micro_only = Bool();
      } else if (key == "random") {
        spec.random_id = Int32();
      } else if (key == "after") {
        after = List([&] { return OpNumber(); });
      } else if (key == "region") {
        spec.region = Word("a region");
      } else if (key == "at") {
        spec.location = Quoted();
      } else {
        FailAt(key_start, StrCat("unknown op field '", key, "'"));
      }
    });
    Located(start, [&] {
      program_.AppendWithId(section, id, std::move(spec), std::move(after));
    });
    next_op_id_ = std::max(next_op_id_, id + 1);
  }

  Program program_;
  OpId next_op_id_ = 0;
  std::vector<std::function<void()>> at_end_;
};

}  // namespace

Program ParseProgram(std::string_view text) { return Parser(text).Parse(); }

}  // namespace plo
