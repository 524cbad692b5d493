// Attention forward and backward: milliseconds, GFLOP/s of the products that
// the causal tiles need, and the workspace.
#include <cstdio>

#include "benchmarks/op_runner.h"

namespace plo {
namespace {

struct Case {
  int64_t batch, seq, heads, dim;
};
constexpr Case kCases[] = {
    {4, 128, 4, 64}, {1, 1024, 4, 64}, {1, 1024, 4, 128}, {1, 4096, 1, 64}};

void Report(const char* what, const Case& c, DType dtype, OpRunner& runner) {
  const double seconds = BestSeconds({[&] { runner.Run(); }}, 5)[0];
  std::printf(
      "%-9s %-5s %3ld x %5ld x %3ld x %4ld %9.3f ms %8.1f GF/s %8.2f "
      "MiB\n",
      what, std::string(DTypeName(dtype)).c_str(), c.batch, c.seq, c.heads,
      c.dim, seconds * 1e3, runner.flops() / seconds * 1e-9,
      static_cast<double>(runner.workspace_bytes()) / (1 << 20));
}

void Main() {
  AttrMap attrs;
  attrs.Set("causal", true);
  for (const Case& c : kCases) {
    for (DType dtype : {DType::kFp32, DType::kBf16}) {
      const Shape shape{c.batch, c.seq, c.heads, c.dim};
      std::vector<OperandSpec> inputs = {
          {"q", dtype, shape}, {"k", dtype, shape}, {"v", dtype, shape}};
      OpRunner forward("attention", inputs, {"out", "lse"}, attrs);
      Report("forward", c, dtype, forward);
      inputs.push_back({"out", dtype, shape});
      inputs.push_back({"lse", DType::kFp32, {c.batch, c.heads, c.seq}});
      inputs.push_back({"dout", dtype, shape});
      OpRunner backward("attention_grad", inputs, {"dq", "dk", "dv"}, attrs);
      Report("backward", c, dtype, backward);
    }
  }
}

}  // namespace
}  // namespace plo

int main() { plo::Main(); }
