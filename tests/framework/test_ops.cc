#include "tests/framework/test_ops.h"

#include <cmath>
#include <limits>
#include <random>

namespace plo {
namespace {

void SameAsX(InferContext& c) { c.Set("out", c.dtype("x"), c.shape("x")); }

OpSchema Unary(const std::string& type) {
  OpSchema schema;
  schema.type = type;
  schema.inputs = {{"x"}};
  schema.outputs = {{"out"}};
  schema.infer = SameAsX;
  return schema;
}

OpRegistry MakeTestOps() {
  OpRegistry registry;
  OpSchema unary = Unary("unary");
  unary.attrs = {{"gain", AttrType::kFloat, false, 1.0}};
  registry.Register(unary);

  OpSchema pair = Unary("pair");
  pair.inputs = {{"x"}, {"y"}};
  pair.infer = [](InferContext& c) {
    c.Require(c.shape("x") == c.shape("y"), "x and y differ in shape");
    SameAsX(c);
  };
  registry.Register(pair);

  OpSchema sum = Unary("sum");
  sum.inputs = {{"x", false, true}};
  registry.Register(sum);

  OpSchema update;
  update.type = "update";
  update.inputs = {{"x"}, {"acc"}};
  update.outputs = {{"acc"}};
  update.aliases = {{"acc", "acc"}};
  update.infer = [](InferContext& c) {
    c.Set("acc", c.dtype("acc"), c.shape("acc"));
  };
  registry.Register(update);

  OpSchema view = Unary("view");
  view.attrs = {{"shape", AttrType::kInts}};
  view.aliases = {{"out", "x"}};
  view.infer = [](InferContext& c) {
    c.Set("out", c.dtype("x"), Shape(c.attrs().GetInts("shape")));
  };
  registry.Register(view);

  OpSchema all_reduce = Unary("all_reduce");
  all_reduce.aliases = {{"out", "x"}};
  all_reduce.collective = true;
  all_reduce.attrs = {
      {"reduction", AttrType::kString, false, std::string("sum")}};
  registry.Register(all_reduce);

  OpSchema host = Unary("host");
  host.where = OpSchema::Where::kDeviceOrHost;
  registry.Register(host);

  for (const char* type : {"copy_d2h", "copy_h2d"}) {
    OpSchema copy = Unary(type);
    copy.where = OpSchema::Where::kCopy;
    registry.Register(copy);
  }
  return registry;
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}

  int64_t Int(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool Chance() { return Int(0, 1) == 1; }

  double Float() {
    switch (Int(0, 6)) {
      case 0:
        return static_cast<double>(Int(-5, 5));
      case 1:
        return std::numeric_limits<double>::infinity();
      case 2:
        return std::nan("");
      case 3:
        return -0.0;
      case 4:
        return std::numeric_limits<double>::denorm_min();
      case 5:
        return std::numeric_limits<double>::lowest();
      default:
        return std::ldexp(
            std::uniform_real_distribution<double>(-1, 1)(engine_),
            static_cast<int>(Int(-300, 300)));
    }
  }

  std::string Word() {
    static constexpr std::string_view kChars =
        "abcXYZ019_./@- \"\\\n\t\x01,=+(){}[]#:\xe9";
    std::string word;
    // Half of the words need no quotes.
    const int64_t last =
        Chance() ? 13 : static_cast<int64_t>(kChars.size()) - 1;
    for (int64_t i = Int(1, 8); i > 0; --i) word += kChars[Int(0, last)];
    return word;
  }

  int64_t AnyInt() {
    switch (Int(0, 3)) {
      case 0:
        return std::numeric_limits<int64_t>::min();
      case 1:
        return std::numeric_limits<int64_t>::max();
      default:
        return Int(-1000, 1000);
    }
  }

  template <typename Item>
  auto List(Item item) {
    std::vector<decltype(item())> items;
    for (int64_t i = Int(0, 3); i > 0; --i) items.push_back(item());
    return items;
  }

  Attr AnyAttr() {
    switch (Int(0, 6)) {
      case 0:
        return Chance();
      case 1:
        return AnyInt();
      case 2:
        return Float();
      case 3:
        return Word();
      case 4:
        return List([&] { return AnyInt(); });
      case 5:
        return List([&] { return Float(); });
      default:
        return List([&] { return Word(); });
    }
  }

  template <typename Enum>
  Enum Pick(int count) {
    return static_cast<Enum>(Int(0, count - 1));
  }

 private:
  std::mt19937 engine_;
};

Var RandomVar(Random& random, int64_t index, int64_t count) {
  Var var;
  var.name = StrCat(random.Word(), index);
  var.dtype = random.Pick<DType>(6);
  var.shape = Shape(random.List([&] { return random.Int(0, 9); }));
  var.kind = random.Pick<VarKind>(4);
  var.place = random.Pick<Place>(2);
  var.category = random.Pick<MemoryCategory>(kMemoryCategoryCount);
  if (random.Chance()) {
    // Forward references too.
    var.view_of = static_cast<VarId>(random.Int(0, count - 1));
    var.byte_offset = random.Int(0, 1 << 20);
    var.rank_stride_bytes = random.Int(0, 2) * 256;
  }
  var.relation = random.Pick<Relation>(7);
  if (var.relation != Relation::kNone) {
    var.related_to = static_cast<VarId>(random.Int(0, count - 1));
  }
  if (random.Chance()) var.region = random.Word();
  var.param.trainable = random.Chance();
  var.param.need_clip = random.Chance();
  var.param.weight_decay = random.Chance();
  var.param.lr_scale = random.Chance() ? 1.0 : random.Float();
  return var;
}

void AddRandomOp(Random& random, Program& program, int64_t var_count) {
  const auto var = [&] {
    return static_cast<VarId>(random.Int(0, var_count - 1));
  };
  const auto slots = [&] {
    return random.List([&] {
      return Slot{random.Word(), random.List([&] { return var(); })};
    });
  };
  OpSpec spec;
  spec.type = random.Word();
  spec.inputs = slots();
  spec.outputs = slots();
  for (int64_t i = random.Int(0, 4); i > 0; --i) {
    spec.attrs.Set(random.Word(), random.AnyAttr());
  }
  spec.role = random.Pick<Role>(3);
  spec.stream = random.Pick<StreamKind>(kStreamCount);
  if (random.Chance()) spec.region = random.Word();
  if (random.Chance()) spec.location = random.Word();
  spec.first_micro_only = random.Chance();
  if (random.Chance()) {
    spec.random_id = static_cast<OpId>(random.Int(0, 1000));
  }
  Op& op = program.Append(random.Pick<Section>(kSectionCount), std::move(spec));
  op.after =
      random.List([&] { return static_cast<OpId>(random.Int(0, 1000)); });
}

Bucket RandomBucket(Random& random, int64_t var_count) {
  const auto var = [&] {
    return random.Chance() ? kNoId
                           : static_cast<VarId>(random.Int(0, var_count - 1));
  };
  Bucket bucket;
  bucket.name = random.Word();
  bucket.members = random.List([&] {
    return Bucket::Member{static_cast<VarId>(random.Int(0, var_count - 1)),
                          random.Int(0, 1000), random.Int(0, 1000)};
  });
  bucket.numel = random.Int(0, 1 << 30);
  bucket.shard_numel = random.Int(0, 1 << 30);
  bucket.trainable = random.Chance();
  bucket.sliced = random.Chance();
  bucket.param = var();
  bucket.param_slice = var();
  bucket.grad = var();
  bucket.final_grad = var();
  bucket.master = var();
  bucket.moment1 = var();
  bucket.moment2 = var();
  return bucket;
}

}  // namespace

const OpRegistry& TestOps() {
  static const OpRegistry registry = MakeTestOps();
  return registry;
}

VarId AddVar(Program& program, const std::string& name, Shape shape,
             VarKind kind, Place place) {
  Var var;
  var.name = name;
  var.shape = std::move(shape);
  var.kind = kind;
  var.place = place;
  return program.AddVar(std::move(var));
}

VarId AddView(Program& program, const std::string& name, Shape shape, VarId of,
              int64_t byte_offset, int64_t rank_stride_bytes) {
  Var var;
  var.name = name;
  var.shape = std::move(shape);
  var.place = program.var(of).place;
  var.view_of = of;
  var.byte_offset = byte_offset;
  var.rank_stride_bytes = rank_stride_bytes;
  return program.AddVar(std::move(var));
}

Op& AddOp(Program& program, Section section, const std::string& type, VarId in,
          VarId out) {
  OpSpec spec;
  spec.type = type;
  spec.inputs = {{"x", {in}}};
  spec.outputs = {{"out", {out}}};
  if (type == "unary") spec.attrs.Set("gain", Attr(1.0));
  if (type == "all_reduce") spec.attrs.Set("reduction", "sum");
  return program.Append(section, std::move(spec));
}

Program RandomProgram(uint32_t seed) {
  Random random(seed);
  Program program;
  program.name = random.Word();
  program.seed = random.AnyInt();
  program.world_size = static_cast<int>(random.Int(1, 1024));
  program.accumulate_steps = static_cast<int>(random.Int(1, 16));
  program.applied_passes = random.List([&] { return random.Word(); });
  const int64_t count = random.Int(1, 12);
  for (int64_t i = 0; i < count; ++i) {
    program.AddVar(RandomVar(random, i, count));
  }
  for (VarId Program::*field :
       {&Program::loss, &Program::loss_count, &Program::mean_loss,
        &Program::step_record, &Program::loss_scale}) {
    if (random.Chance()) {
      program.*field = static_cast<VarId>(random.Int(0, count - 1));
    }
  }
  program.buckets = random.List([&] { return RandomBucket(random, count); });
  for (int64_t i = random.Int(0, 12); i > 0; --i) {
    AddRandomOp(random, program, count);
  }
  return program;
}

}  // namespace plo
