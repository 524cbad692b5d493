// The matmul op against bare oneDNN on the same matrices in the same dtype, at
// the shapes of a GPT of 256 hidden units and of larger layers. Prints GFLOP/s
// and the ratio of their times (op / bare; 1.10 is the bound), then the worst
// ratio of each dtype. OMP_NUM_THREADS sets the threads of both.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <dnnl.hpp>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "benchmarks/op_runner.h"
#include "operators/kernel_util.h"

namespace plo {
namespace {

struct Case {
  const char* what;
  int64_t m, n, k;
  bool trans_x, trans_y, bias, accumulate;
};

constexpr Case kCases[] = {
    {"qkv", 512, 768, 256, false, false, true, false},
    {"proj", 512, 256, 256, false, false, true, false},
    {"fc1", 512, 1024, 256, false, false, true, false},
    {"fc2", 512, 256, 1024, false, false, true, false},
    {"fc1 dx", 512, 256, 1024, false, true, false, false},
    {"fc1 dw", 256, 1024, 512, true, false, false, false},
    {"fc1 dw accumulate", 256, 1024, 512, true, false, false, true},
    {"head", 512, 256, 256, false, true, false, false},
    {"square 1024", 1024, 1024, 1024, false, false, false, false},
};

constexpr DType kDTypes[] = {DType::kFp32, DType::kBf16, DType::kFp16};

// How 16 bits get to fp32 and back where oneDNN does not multiply them.
enum class Conversion { kReorder, kVectorLoops };

// The product as a careful user of oneDNN would hold it: primitives made once,
// plain strides, whole operands converted if need be.
class BareMatmul {
 public:
  BareMatmul(const Case& c, DType dtype, Conversion conversion)
      : dtype_(dtype),
        conversion_(conversion),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_) {
    const Type stored = dtype == DType::kFp32   ? Type::f32
                        : dtype == DType::kBf16 ? Type::bf16
                                                : Type::f16;
    auto desc = Describe(c, stored);
    native_ = desc.get(true) != nullptr;
    if (!native_) desc = Describe(c, Type::f32);
    matmul_ = dnnl::matmul(desc);
    AddOperand(DNNL_ARG_SRC, MatrixDesc(stored, c.m, c.k, c.trans_x), true);
    AddOperand(DNNL_ARG_WEIGHTS, MatrixDesc(stored, c.k, c.n, c.trans_y), true);
    if (c.bias) AddOperand(DNNL_ARG_BIAS, MatrixDesc(stored, 1, c.n), true);
    const auto out = MatrixDesc(stored, c.m, c.n);
    const auto [kept, used] = AddOperand(DNNL_ARG_DST, out, c.accumulate);
    if (!native_) after_.emplace_back(used, kept);
  }
  void Run() {
    for (Copy& copy : before_) Convert(copy);
    matmul_.execute(stream_, arguments_);
    for (Copy& copy : after_) Convert(copy);
    stream_.wait();
  }
  bool native() const { return native_; }

 private:
  using Desc = dnnl::memory::desc;
  using Type = dnnl::memory::data_type;

  struct Copy {
    dnnl::memory from, to;
    dnnl::reorder reorder;
    Copy(const dnnl::memory& f, const dnnl::memory& t)
        : from(f), to(t), reorder(f, t) {}
  };

  static Desc MatrixDesc(Type type, int64_t rows, int64_t cols,
                         bool trans = false) {
    using Tag = dnnl::memory::format_tag;
    return Desc({rows, cols}, type, trans ? Tag::ba : Tag::ab);
  }

  // Empty where oneDNN has none.
  dnnl::matmul::primitive_desc Describe(const Case& c, Type type) const {
    const Desc x = MatrixDesc(type, c.m, c.k, c.trans_x);
    const Desc y = MatrixDesc(type, c.k, c.n, c.trans_y);
    const Desc out = MatrixDesc(type, c.m, c.n);
    dnnl::primitive_attr attr;
    if (c.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attr.set_post_ops(sum);
    }
    const auto op =
        c.bias ? dnnl::matmul::desc(x, y, MatrixDesc(type, 1, c.n), out)
               : dnnl::matmul::desc(x, y, out);
    return dnnl::matmul::primitive_desc(op, attr, engine_, true);
  }

  dnnl::memory Allocate(const Desc& desc) const {
    dnnl::memory memory(desc, engine_);
    // Small normal numbers in every dtype.
    std::memset(memory.get_data_handle(), 0x2c, desc.get_size());
    return memory;
  }

  // What is kept and what the product takes: the same where native.
  std::pair<dnnl::memory, dnnl::memory> AddOperand(int argument, Desc desc,
                                                   bool read) {
    const dnnl::memory kept = Allocate(desc);
    desc.data.data_type = dnnl_f32;
    const dnnl::memory used = native_ ? kept : Allocate(desc);
    if (read && !native_) before_.emplace_back(kept, used);
    arguments_.emplace(argument, used);
    return {kept, used};
  }

  void Convert(Copy& copy) {
    if (conversion_ == Conversion::kReorder) {
      copy.reorder.execute(stream_, copy.from, copy.to);
      return;
    }
    const auto& desc = copy.from.get_desc().data;
    const void* from = copy.from.get_data_handle();
    void* to = copy.to.get_data_handle();
    const int64_t n = desc.dims[0] * desc.dims[1];
    // As rows of equal size, which are shared out to the threads.
    const int64_t rows = n % kParallelElements == 0 ? n / 1024 : 1;
    if (desc.data_type == dnnl_f32) {
      ConvertMatrixFromFloat(dtype_, static_cast<const float*>(from), n / rows,
                             to, n / rows, rows, n / rows);
    } else {
      ConvertMatrixToFloat(dtype_, from, n / rows, static_cast<float*>(to),
                           n / rows, rows, n / rows);
    }
  }

  DType dtype_;
  Conversion conversion_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  bool native_ = false;
  std::vector<Copy> before_, after_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

OpRunner MakeOp(const Case& c, DType dtype) {
  std::vector<OperandSpec> inputs = {
      {"x", dtype, c.trans_x ? Shape{c.k, c.m} : Shape{c.m, c.k}},
      {"y", dtype, c.trans_y ? Shape{c.n, c.k} : Shape{c.k, c.n}}};
  if (c.bias) inputs.push_back({"bias", dtype, Shape{c.n}});
  if (c.accumulate) inputs.push_back({"acc", dtype, Shape{c.m, c.n}});
  AttrMap attrs;
  attrs.Set("trans_x", c.trans_x);
  attrs.Set("trans_y", c.trans_y);
  attrs.Set("accumulate", c.accumulate);
  std::vector<std::pair<std::string, std::string>> same;
  if (c.accumulate) same.push_back({"out", "acc"});
  return OpRunner("matmul", inputs, {"out"}, attrs, same);
}

// One dtype of a case: the op and what it is compared with.
struct Contest {
  Contest(const Case& c, DType dtype)
      : op(MakeOp(c, dtype)),
        bare(c, dtype, Conversion::kVectorLoops),
        reordering(c, dtype, Conversion::kReorder) {}
  OpRunner op;
  BareMatmul bare, reordering;
};

void Main() {
  std::printf("%-18s %5s %5s %5s", "GFLOP/s", "m", "n", "k");
  bool native = true;
  for (DType dtype : kDTypes) {
    const bool mark = !Contest(kCases[0], dtype).bare.native();
    if (mark) native = false;
    std::printf("  %4s%s bare     op ratio",
                std::string(DTypeName(dtype)).c_str(), mark ? "*" : " ");
  }
  std::printf("\n");
  double worst[std::size(kDTypes)] = {}, worst_to_reorder = 0;
  for (const Case& c : kCases) {
    std::vector<std::unique_ptr<Contest>> contests;
    std::vector<std::function<void()>> runs;
    for (DType dtype : kDTypes) {
      contests.push_back(std::make_unique<Contest>(c, dtype));
      Contest& contest = *contests.back();
      runs.push_back([&contest] { contest.bare.Run(); });
      runs.push_back([&contest] { contest.op.Run(); });
    }
    const std::vector<double> seconds = BestSeconds(runs, 40);
    std::printf("%-18s %5ld %5ld %5ld", c.what, c.m, c.n, c.k);
    for (size_t i = 0; i < contests.size(); ++i) {
      Contest& contest = *contests[i];
      const double of_bare = seconds[2 * i], of_op = seconds[2 * i + 1];
      const double gflop = contest.op.flops() * 1e-9;
      worst[i] = std::max(worst[i], of_op / of_bare);
      std::printf("  %10.1f %6.1f %5.3f", gflop / of_bare, gflop / of_op,
                  of_op / of_bare);
      if (contest.bare.native()) continue;
      // Apart: the reorders take so long that what follows finds cold caches.
      const double reordering =
          BestSeconds({[&] { contest.reordering.Run(); }}, 3)[0];
      worst_to_reorder = std::max(worst_to_reorder, of_op / reordering);
    }
    std::printf("\n");
  }
  if (!native) {
    std::printf(
        "* oneDNN has no such matmul on this CPU: bare is the fp32 one between "
        "vectorised\n  conversions; between oneDNN's reorders the worst ratio "
        "is %.3f\n",
        worst_to_reorder);
  }
  std::printf("worst ratio:");
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    std::printf("%s %s %.3f", i == 0 ? "" : ",",
                std::string(DTypeName(kDTypes[i])).c_str(), worst[i]);
  }
  std::printf("\n");
}

}  // namespace
}  // namespace plo

int main() { plo::Main(); }
