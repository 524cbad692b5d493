// Each op on the GPU against the CPU, on random data: the same bits where the
// arithmetic is the same, else within the rounding of reordered sums and of the
// two exponentials. And every run on the GPU gives the same bits again.
#include <set>

#include "framework/runtime/kernel.h"
#include "operators/register_ops.h"
#include "tests/operators/test_util.h"

namespace plo::testing {
namespace {

struct Comparison {
  std::string what;
  OpCase c;
  double relative = 0;  // both zero: the same bits
  double absolute = 0;
};

using Inputs = std::vector<std::pair<std::string, Arrays>>;
using AttrList = std::vector<std::pair<std::string, Attr>>;

class Cases {
 public:
  explicit Cases(DType dtype) : dtype_(dtype) {
    Elementwise();
    Rows();
    Losses();
    Tables();
    Fills();
    Shapes();
    Reductions();
    MicroSteps();
  }
  const std::vector<Comparison>& all() const { return all_; }

 private:
  Array Random(Shape shape, uint64_t seed, double low = -2, double high = 2) {
    return RandomArray(dtype_, std::move(shape), seed, low, high);
  }
  // One step of rounding apart, for results that two orders of fp32 sums make.
  double Loose() const { return 2.01 * UnitRoundoff(dtype_) + 4e-6; }

  OpCase& Add(std::string type, Inputs inputs, std::vector<std::string> outputs,
              AttrList attrs = {}, double relative = 0, double absolute = 0) {
    OpCase c;
    c.type = type;
    c.inputs = std::move(inputs);
    c.outputs = std::move(outputs);
    c.attrs = Attrs(std::move(attrs));
    c.random_id = 7;
    c.env.seed = 11;
    const std::string what = StrCat(type, " ", dtype_, " #", all_.size());
    all_.push_back({what, std::move(c), relative, absolute});
    return all_.back().c;
  }

  void Elementwise() {
    for (const Shape& shape : {Shape{5, 33}, Shape{4, 4096}, Shape{100003}}) {
      const Array x = Random(shape, 1, -9, 9), dout = Random(shape, 2);
      for (const char* type : {"relu", "tanh"}) {
        Add(type, {{"x", {x}}}, {"out"});
        Add(StrCat(type, "_grad"), {{"x", {x}}, {"dout", {dout}}}, {"dx"});
        Add(StrCat(type, "_grad"), {{"x", {x}}, {"dout", {dout}}},
            {"dx", "out"});
      }
      // In 16 bits by approximations of the special function unit.
      const bool exact = dtype_ == DType::kFp32;
      const double relative = exact ? 0 : Loose();
      const double absolute = exact ? 0 : 1e-5;
      for (const char* type : {"gelu", "silu"}) {
        Add(type, {{"x", {x}}}, {"out"}, {}, relative, absolute);
        Add(StrCat(type, "_grad"), {{"x", {x}}, {"dout", {dout}}}, {"dx"}, {},
            relative, absolute);
        Add(StrCat(type, "_grad"), {{"x", {x}}, {"dout", {dout}}},
            {"dx", "out"}, {}, relative, absolute)
            .inplace = true;
      }
      const AttrList erf = {{"approximate", Str("erf")}};
      Add("gelu", {{"x", {x}}}, {"out"}, erf);
      Add("gelu_grad", {{"x", {x}}, {"dout", {dout}}}, {"dx"}, erf).inplace =
          true;
      Add("gelu_grad", {{"x", {x}}, {"dout", {dout}}}, {"dx", "out"}, erf);
      Add("scale", {{"x", {x}}}, {"out"}, {{"factor", 0.3}, {"bias", 0.1}});
      for (const char* to : {"fp32", "bf16", "fp16"}) {
        Add("cast", {{"x", {x}}}, {"out"}, {{"dtype", Str(to)}});
      }
    }
    const std::pair<Shape, Shape> shapes[] = {
        {{3, 5}, {3, 5}},          {{64, 2048}, {2048}},
        {{64, 2048}, {64, 1}},     {{7, 2, 1024}, {7, 1, 1024}},
        {{2, 3, 1, 5}, {3, 4, 1}}, {{1}, {9, 777}}};
    for (const auto& [x, y] : shapes) {
      for (const char* type : {"add", "sub", "mul", "div"}) {
        Add(type, {{"x", {Random(x, 3)}}, {"y", {Random(y, 4, 0.5, 2)}}},
            {"out"});
      }
    }
    for (const Shape& shape : {Shape{4, 4096}, Shape{3, 1001}, Shape{17}}) {
      for (const char* type : {"dropout", "dropout_grad"}) {
        const bool grad = std::string(type) == "dropout_grad";
        OpCase& c = Add(type, {{grad ? "dout" : "x", {Random(shape, 5)}}},
                        {grad ? "dx" : "out"}, {{"p", 0.3}});
        c.step = {6, 1};
        c.env.accumulate_steps = 2;
        c.env.world_size = 3;
        c.env.rank = 2;
      }
    }
  }

  void Rows() {
    // One warp, several rows a block, one row a block, rows of many tiles.
    for (const Shape& shape : {Shape{70, 33}, Shape{600, 256}, Shape{300, 2048},
                               Shape{37, 6144}, Shape{3, 20000}}) {
      const int64_t n = shape.dim(-1);
      const Array x = Random(shape, 1), dout = Random(shape, 2);
      const Array weight = Random({n}, 3, 0.5, 1.5), bias = Random({n}, 4);
      Add("layer_norm", {{"x", {x}}, {"weight", {weight}}, {"bias", {bias}}},
          {"out", "mean", "rstd"}, {}, Loose(), 2e-6);
      Add("layer_norm", {{"x", {x}}}, {"out", "mean", "rstd"}, {}, Loose(),
          2e-6);
      Add("add_layer_norm",
          {{"x", {x}},
           {"residual", {dout}},
           {"weight", {weight}},
           {"bias", {bias}}},
          {"sum", "out", "mean", "rstd"}, {}, Loose(), 2e-6)
          .inplace = true;
      const Array mean =
          RandomArray(DType::kFp32, LeadingShape(shape), 5, -0.1, 0.1);
      const Array rstd =
          RandomArray(DType::kFp32, LeadingShape(shape), 6, 0.5, 1);
      const Inputs grad = {{"x", {x}},
                           {"weight", {weight}},
                           {"mean", {mean}},
                           {"rstd", {rstd}},
                           {"dout", {dout}}};
      const double sums = 3e-7 * static_cast<double>(shape.numel() / n) + 1e-5;
      for (const std::vector<std::string>& outputs :
           {std::vector<std::string>{"dx", "dweight", "dbias"},
            std::vector<std::string>{"dweight", "dbias"},
            std::vector<std::string>{"dx"},
            std::vector<std::string>{"dx", "dbias"}}) {
        Add("layer_norm_grad", grad, outputs, {}, Loose(), sums).inplace =
            outputs.size() == 3;
      }
      Inputs residual = grad;
      residual.push_back({"dresidual", {Random(shape, 8)}});
      // A step of rounding of a dx below 8 may be left of a sum near 0.
      Add("layer_norm_grad", residual, {"dx", "dweight", "dbias"}, {}, Loose(),
          sums + 8 * Loose())
          .inplace = true;
      Add("softmax", {{"x", {x}}}, {"out"}, {}, Loose(), 0x1p-24);
      Add("softmax_grad",
          {{"out", {Random(shape, 7, 0, 2.0 / static_cast<double>(n))}},
           {"dout", {dout}}},
          {"dx"}, {}, Loose(), 0x1p-24);
      Add("reduce_rows", {{"x", {x}}}, {"out"}, {}, Loose(), sums);
      OpCase& more = Add("reduce_rows", {{"x", {x}}, {"acc", {bias}}}, {"out"},
                         {{"accumulate", true}}, Loose(), sums);
      more.same_var = {{"out", "acc"}};
    }
  }

  static Shape LeadingShape(const Shape& shape) {
    std::vector<int64_t> dims = shape.dims();
    dims.pop_back();
    return Shape(std::move(dims));
  }

  void Losses() {
    for (const int64_t classes : {7, 257, 5000}) {
      const Array logits = Random({2, 45, classes}, 1, -6, 6);
      Array labels = RandomInts(DType::kInt32, {2, 45}, 2, 0, classes);
      for (size_t i = 0; i < 90; i += 4) labels.values[i] = -100;
      Add("cross_entropy", {{"logits", {logits}}, {"labels", {labels}}},
          {"loss_sum", "lse"}, {}, 2e-6, 1e-6);
      Add("cross_entropy_grad",
          {{"logits", {logits}},
           {"labels", {labels}},
           {"lse", {RandomArray(DType::kFp32, {2, 45}, 3, 6, 9)}},
           {"dloss", {ScalarArray(DType::kFp32, 0.25)}}},
          {"dlogits"}, {}, Loose(), 1e-7)
          .inplace = true;
      Add("count_valid", {{"labels", {labels}}}, {"count"});
      Add("count_elements", {{"x", {logits}}}, {"count"});
    }
    for (const Shape& shape : {Shape{7, 301}, Shape{64, 4096}}) {
      const Array x = Random(shape, 4), y = Random(shape, 5);
      Add("sum_squared_error", {{"x", {x}}, {"y", {y}}}, {"loss_sum"}, {},
          2e-7);
      Add("sum_squared_error_grad",
          {{"x", {x}}, {"y", {y}}, {"dloss", {ScalarArray(DType::kFp32, 0.3)}}},
          {"dx"});
    }
    Add("loss_seed",
        {{"count", {ScalarArray(DType::kFp32, 3)}},
         {"scale", {ScalarArray(DType::kFp32, 65536)}}},
        {"seed"});
    Add("loss_seed", {{"count", {ScalarArray(DType::kFp32, 0)}}}, {"seed"});
    for (const char* kind : {"constant", "linear", "cosine"}) {
      for (const double step : {0, 9, 10, 55, 200}) {
        Add("lr_schedule",
            {{"applied_step", {ScalarArray(DType::kInt64, step)}}}, {"lr"},
            {{"kind", Str(kind)},
             {"base_lr", 3e-4},
             {"warmup_steps", Int(10)},
             {"total_steps", Int(100)},
             {"min_ratio", 0.1}},
            0x1p-23);
      }
    }
  }

  void Tables() {
    struct Table {
      int64_t rows, hidden, count;
      bool short_ids;  // no id has more than a group of positions
    };
    for (const Table& t :
         {Table{300, 40, 900, true}, Table{70000, 8, 3000, true},
          Table{40, 1030, 2900, false}, Table{1, 12, 5000, false}}) {
      const Array ids = RandomInts(DType::kInt32, {t.count}, 1, 0, t.rows);
      Add("embedding",
          {{"ids", {ids}}, {"weight", {Random({t.rows, t.hidden}, 2)}}},
          {"out"});
      const Array dout = Random({t.count, t.hidden}, 3);
      const AttrList rows = {{"num_rows", Int(t.rows)}};
      const double relative = t.short_ids ? 0 : Loose();
      const double absolute = t.short_ids ? 0 : 2e-3;
      Add("embedding_grad", {{"ids", {ids}}, {"dout", {dout}}}, {"dweight"},
          rows, relative, absolute);
      OpCase& more = Add("embedding_grad",
                         {{"ids", {ids}},
                          {"dout", {dout}},
                          {"acc", {Random({t.rows, t.hidden}, 4)}}},
                         {"dweight"}, rows, relative, absolute);
      more.attrs.Set("accumulate", true);
      more.same_var = {{"dweight", "acc"}};
    }
  }

  void Fills() {
    const std::string name(DTypeName(dtype_));
    for (const int64_t n : {1, 1003, 70000}) {
      const AttrList base = {{"shape", Ints({n})}, {"dtype", Attr(name)}};
      const auto with = [&](AttrList attrs) {
        attrs.insert(attrs.end(), base.begin(), base.end());
        return attrs;
      };
      Add("fill_constant", {}, {"out"}, with({{"value", 0.3}}));
      Add("fill_normal", {}, {"out"},
          with({{"mean", 0.1}, {"std", 0.02}, {"key", Str("w")}}));
      Add("fill_uniform", {}, {"out"},
          with({{"low", -0.2}, {"high", 0.7}, {"key", Str("w")}}));
    }
    for (const char* dtype : {"int32", "int64", "bool"}) {
      Add("fill_constant", {}, {"out"},
          {{"value", 1.0}, {"shape", Ints({777})}, {"dtype", Str(dtype)}});
    }
  }

  void Shapes() {
    const Array x = Random({6, 40, 24}, 1);
    Add("reshape", {{"x", {x}}}, {"out"}, {{"shape", Ints({-1})}});
    Add("reshape_copy", {{"x", {x}}}, {"out"}, {{"shape", Ints({40, -1})}});
    for (const auto& perm :
         {std::vector<int64_t>{0, 1, 2}, std::vector<int64_t>{1, 0, 2},
          std::vector<int64_t>{0, 2, 1}, std::vector<int64_t>{2, 1, 0},
          std::vector<int64_t>{1, 2, 0}, std::vector<int64_t>{2, 0, 1}}) {
      Add("transpose", {{"x", {x}}}, {"out"}, {{"perm", Ints(perm)}});
      Add("transpose", {{"x", {Random({33, 70, 5}, 2)}}}, {"out"},
          {{"perm", Ints(perm)}});
    }
    for (const int64_t axis : {0, 1, 2}) {
      Add("slice", {{"x", {x}}}, {"out"},
          {{"axis", Int(axis)}, {"begin", Int(1)}, {"end", Int(5)}});
      Add("slice_grad", {{"dout", {x}}}, {"dx"},
          {{"axis", Int(axis)}, {"begin", Int(3)}, {"full", Int(50)}});
      Add("concat", {{"x", {x, Random({6, 40, 24}, 3)}}}, {"out"},
          {{"axis", Int(axis)}});
      const int64_t n = x.shape[static_cast<int>(axis)];
      Add("split", {{"x", {x}}}, {"out*3"},
          {{"axis", Int(axis)}, {"sizes", Ints({1, 0, n - 1})}});
    }
    Add("broadcast_to", {{"x", {Random({40, 1}, 4)}}}, {"out"},
        {{"shape", Ints({3, 40, 64})}});
    Add("broadcast_to", {{"x", {Random({1, 64}, 5)}}}, {"out"},
        {{"shape", Ints({9, 64})}});
  }

  void Reductions() {
    for (const auto& [shape, axes] :
         {std::pair<Shape, std::vector<int64_t>>{{700, 2048}, {0}},
          {{33, 5001}, {1}},
          {{2, 3, 40, 16}, {0, 2}},
          {{2, 3, 40, 16}, {1, 3}},
          {{90000}, {0}},
          {{5, 1, 7}, {2}}}) {
      const Array x = Random(shape, 1);
      const AttrList attrs = {{"axes", Ints(axes)}};
      // Sums in double, rounded once: the order shows in rare last bits.
      Add("reduce_sum", {{"x", {x}}}, {"out"}, attrs, Loose(), 1e-6);
      Add("reduce_mean", {{"x", {x}}}, {"out"}, attrs, Loose(), 1e-6);
      Add("reduce_max", {{"x", {x}}}, {"out"}, attrs);
      const OpCase forward = all_.back().c;
      const Array out = RunOp(forward, DeviceKind::kCpu)["out"][0];
      Add("reduce_max_grad",
          {{"x", {x}}, {"out", {out}}, {"dout", {Random(out.shape, 2)}}},
          {"dx"}, attrs);
    }
    Add("reduce_to_shape", {{"x", {Random({8, 6, 512}, 3)}}}, {"out"},
        {{"shape", Ints({6, 512})}}, Loose(), 1e-6);
    Add("reduce_to_shape", {{"x", {Random({8, 6, 512}, 4)}}}, {"out"},
        {{"shape", Ints({8, 1, 1})}}, Loose(), 1e-6);
  }

  void MicroSteps() {
    for (const int micro : {0, 2}) {
      OpCase& add = Add("accumulate",
                        {{"x", {Random({40001}, 1)}},
                         {"acc", {RandomArray(DType::kFp32, {40001}, 2)}}},
                        {"acc"});
      add.same_var = {{"acc", "acc"}};
      add.step.micro_index = micro;
      OpCase& slice =
          Add("slice_micro", {{"x", {Random({3, 5, 9}, 3)}}}, {"out"});
      slice.step.micro_index = micro;
    }
    std::vector<int64_t> begins, ends;
    for (int64_t i = 0; i < 70; ++i) {
      begins.push_back(i * 100);
      ends.push_back(i * 100 + i);
    }
    OpCase& zero = Add("zero_ranges", {{"x", {Random({7000}, 4, 1, 2)}}}, {"x"},
                       {{"begins", Ints(begins)}, {"ends", Ints(ends)}});
    zero.same_var = {{"x", "x"}};
  }

  DType dtype_;
  std::vector<Comparison> all_;
};

const char* const kTypes[] = {"accumulate",
                              "add",
                              "add_layer_norm",
                              "broadcast_to",
                              "cast",
                              "concat",
                              "count_elements",
                              "count_valid",
                              "cross_entropy",
                              "cross_entropy_grad",
                              "div",
                              "dropout",
                              "dropout_grad",
                              "embedding",
                              "embedding_grad",
                              "fill_constant",
                              "fill_normal",
                              "fill_uniform",
                              "gelu",
                              "gelu_grad",
                              "layer_norm",
                              "layer_norm_grad",
                              "loss_seed",
                              "lr_schedule",
                              "mul",
                              "reduce_max",
                              "reduce_max_grad",
                              "reduce_mean",
                              "reduce_rows",
                              "reduce_sum",
                              "reduce_to_shape",
                              "relu",
                              "relu_grad",
                              "reshape",
                              "reshape_copy",
                              "scale",
                              "silu",
                              "silu_grad",
                              "slice",
                              "slice_grad",
                              "slice_micro",
                              "softmax",
                              "softmax_grad",
                              "split",
                              "sub",
                              "sum_squared_error",
                              "sum_squared_error_grad",
                              "tanh",
                              "tanh_grad",
                              "transpose",
                              "zero_ranges"};

class CudaParityTest : public ::testing::TestWithParam<DType> {};

TEST_P(CudaParityTest, CasesCoverTheOps) {
  RegisterBuiltinOps();
  const Cases cases(GetParam());
  std::set<std::string> covered;
  for (const Comparison& comparison : cases.all()) {
    covered.insert(comparison.c.type);
  }
  const KernelRegistry& kernels = KernelRegistry::Global();
  const bool built = kernels.Find("copy_d2h", DeviceKind::kCuda) != nullptr;
  for (const char* type : kTypes) {
    EXPECT_EQ(covered.count(type), 1u) << type;
    EXPECT_EQ(kernels.Find(type, DeviceKind::kCuda) != nullptr, built) << type;
  }
  EXPECT_EQ(covered.size(), std::size(kTypes));
}

TEST_P(CudaParityTest, GivesTheResultsOfTheCpu) {
  if (TestDevice() != DeviceKind::kCuda) {
    GTEST_SKIP() << "compares a GPU with the CPU: set PLO_TEST_DEVICE=cuda";
  }
  const Cases cases(GetParam());
  for (const Comparison& comparison : cases.all()) {
    SCOPED_TRACE(comparison.what);
    const SlotArrays want = RunOp(comparison.c, DeviceKind::kCpu);
    const SlotArrays got = RunOp(comparison.c, DeviceKind::kCuda);
    const SlotArrays again = RunOp(comparison.c, DeviceKind::kCuda);
    for (const auto& [slot, arrays] : want) {
      for (size_t i = 0; i < arrays.size(); ++i) {
        const Array& result = got.at(slot)[i];
        ExpectSame(again.at(slot)[i], result, slot + " again");
        if (comparison.relative == 0 && comparison.absolute == 0) {
          ExpectSame(result, arrays[i], slot);
        } else {
          ExpectNear(result, arrays[i].values, comparison.relative,
                     comparison.absolute, slot);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaParityTest,
                         ::testing::ValuesIn(kFloatTypes),
                         [](const auto& test) {
                           return std::string(DTypeName(test.param));
                         });

}  // namespace
}  // namespace plo::testing
