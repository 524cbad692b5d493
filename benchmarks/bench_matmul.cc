// The matmul op against the bare oneDNN primitive on the same matrices, at the
// shapes of a GPT of 256 hidden units and of larger layers. Prints GFLOP/s and
// the ratio of their times (op / bare; 1.10 is the bound in fp32); for bf16 the
// ratio is to the bare fp32 product. OMP_NUM_THREADS sets the threads of both.
#include <cstdio>
#include <dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "benchmarks/op_runner.h"

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

// The primitive as a careful user would hold it: made once, plain strides.
class BareMatmul {
 public:
  explicit BareMatmul(const Case& c) : engine_(dnnl::engine::kind::cpu, 0) {
    using Desc = dnnl::memory::desc;
    using Tag = dnnl::memory::format_tag;
    const auto desc = [](int64_t rows, int64_t cols, bool trans) {
      return Desc({rows, cols}, dnnl::memory::data_type::f32,
                  trans ? Tag::ba : Tag::ab);
    };
    stream_ = dnnl::stream(engine_);
    const Desc x = desc(c.m, c.k, c.trans_x), y = desc(c.k, c.n, c.trans_y),
               out = desc(c.m, c.n, false), bias = desc(1, c.n, false);
    dnnl::primitive_attr attr;
    if (c.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attr.set_post_ops(sum);
    }
    const auto op = c.bias ? dnnl::matmul::desc(x, y, bias, out)
                           : dnnl::matmul::desc(x, y, out);
    matmul_ = dnnl::matmul(dnnl::matmul::primitive_desc(op, attr, engine_));
    AddOperand(DNNL_ARG_SRC, x, c.m * c.k);
    AddOperand(DNNL_ARG_WEIGHTS, y, c.k * c.n);
    AddOperand(DNNL_ARG_DST, out, c.m * c.n);
    if (c.bias) AddOperand(DNNL_ARG_BIAS, bias, c.n);
  }
  void Run() {
    matmul_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  void AddOperand(int argument, const dnnl::memory::desc& desc, int64_t n) {
    data_.emplace_back(static_cast<size_t>(n), 0.25f);
    arguments_.emplace(argument,
                       dnnl::memory(desc, engine_, data_.back().data()));
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  std::vector<std::vector<float>> data_;
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

void Main() {
  std::printf("%-18s %5s %5s %5s %9s %9s %7s %9s %7s\n", "product", "m", "n",
              "k", "bare GF/s", "op GF/s", "ratio", "bf16 GF/s", "ratio");
  double worst = 0;
  for (const Case& c : kCases) {
    BareMatmul bare_matmul(c);
    OpRunner fp32_op = MakeOp(c, DType::kFp32);
    OpRunner bf16_op = MakeOp(c, DType::kBf16);
    const std::vector<double> seconds =
        BestSeconds({[&] { bare_matmul.Run(); }, [&] { fp32_op.Run(); },
                     [&] { bf16_op.Run(); }});
    const double bare = seconds[0], op = seconds[1], bf16 = seconds[2];
    const double flops = fp32_op.flops();
    worst = std::max(worst, op / bare);
    std::printf("%-18s %5ld %5ld %5ld %9.1f %9.1f %7.3f %9.1f %7.3f\n", c.what,
                c.m, c.n, c.k, flops / bare * 1e-9, flops / op * 1e-9,
                op / bare, flops / bf16 * 1e-9, bf16 / bare);
  }
  std::printf("worst fp32 ratio %.3f\n", worst);
}

}  // namespace
}  // namespace plo

int main() { plo::Main(); }
