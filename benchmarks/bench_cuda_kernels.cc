// CUDA kernels at the shapes of an 18 x 2048 GPT, 8 x 1024 tokens, bf16.
// Products: TFLOP/s, and the ratio to bare cuBLASLt with the fastest of the
// algorithms its heuristic offers. Attention and linear cross entropy: TFLOP/s
// of the products they cannot do without. The rest: GB/s of operands and the
// ratio to a device copy. Without a GPU it says so and does nothing.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>

#include "benchmarks/op_runner.h"

namespace plo {
namespace {

constexpr int64_t kBatch = 8, kSeq = 1024, kHeads = 16, kHeadDim = 128;
constexpr int64_t kTokens = kBatch * kSeq, kHidden = 2048;
constexpr int64_t kVocab = 50304;
constexpr DType kType = DType::kBf16;

void Check(cudaError_t status) {
  PLO_ENFORCE(status == cudaSuccess, kInternal, cudaGetErrorString(status));
}

void* Allocate(size_t bytes) {
  void* data = nullptr;
  Check(cudaMalloc(&data, bytes));
  return data;
}

const RunnerDevice kCuda = {
    .kind = DeviceKind::kCuda,
    .allocate = Allocate,
    .free = [](void* data) { cudaFree(data); },
    .upload =
        [](void* target, const void* source, size_t bytes) {
          Check(cudaMemcpy(target, source, bytes, cudaMemcpyHostToDevice));
        },
    .stream = nullptr};

// Milliseconds per call: the fastest of five batches of about 30 ms.
double Milliseconds(const std::function<void()>& fn) {
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  const auto time = [&](int calls) {
    Check(cudaEventRecord(begin));
    for (int i = 0; i < calls; ++i) fn();
    Check(cudaEventRecord(end));
    Check(cudaEventSynchronize(end));
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end));
    return static_cast<double>(ms) / calls;
  };
  time(2);
  const int calls = std::clamp(static_cast<int>(30 / time(2)), 2, 1000);
  double best = 1e30;
  for (int i = 0; i < 5; ++i) best = std::min(best, time(calls));
  Check(cudaEventDestroy(begin));
  Check(cudaEventDestroy(end));
  return best;
}

bool HasKernel(const char* op) {
  RegisterBuiltinOps();
  if (KernelRegistry::Global().Find(op, DeviceKind::kCuda) != nullptr) {
    return true;
  }
  std::printf("%-28s has no CUDA kernel\n", op);
  return false;
}

// --- Products ---

struct Product {
  const char* what;
  int64_t m, n, k;
  bool trans_x, trans_y, bias, accumulate;
};

// The fastest of cuBLASLt's offers, timed, on operands of the same shapes.
double BareMilliseconds(const Product& p) {
  cublasLtHandle_t handle = nullptr;
  cublasLtCreate(&handle);
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const auto set = [&](auto attribute, auto value) {
    cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof(value));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, p.trans_y ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, p.trans_x ? CUBLAS_OP_T : CUBLAS_OP_N);
  void* bias = Allocate(static_cast<size_t>(p.n) * 2);
  if (p.bias) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  struct Matrix {
    Matrix(int64_t rows, int64_t cols) {
      cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF,
                                 static_cast<uint64_t>(cols),
                                 static_cast<uint64_t>(rows), cols);
      data = Allocate(static_cast<size_t>(rows * cols) * 2);
      Check(cudaMemset(data, 0x11, static_cast<size_t>(rows * cols) * 2));
    }
    ~Matrix() {
      cublasLtMatrixLayoutDestroy(layout);
      cudaFree(data);
    }
    cublasLtMatrixLayout_t layout = nullptr;
    void* data = nullptr;
  };
  const Matrix x(p.trans_x ? p.k : p.m, p.trans_x ? p.m : p.k);
  const Matrix y(p.trans_y ? p.n : p.k, p.trans_y ? p.k : p.n);
  const Matrix out(p.m, p.n);
  constexpr size_t kWorkspace = size_t{32} << 20;
  void* workspace = Allocate(kWorkspace);
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulPreferenceCreate(&preference);
  cublasLtMatmulPreferenceSetAttribute(preference,
                                       CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                       &kWorkspace, sizeof(kWorkspace));
  cublasLtMatmulHeuristicResult_t results[8];
  int found = 0;
  cublasLtMatmulAlgoGetHeuristic(handle, desc, y.layout, x.layout, out.layout,
                                 out.layout, preference, 8, results, &found);
  const float alpha = 1, beta = p.accumulate ? 1 : 0;
  double best = 1e30;
  for (int i = 0; i < found; ++i) {
    const auto run = [&] {
      return cublasLtMatmul(handle, desc, &alpha, y.data, y.layout, x.data,
                            x.layout, &beta, out.data, out.layout, out.data,
                            out.layout, &results[i].algo, workspace, kWorkspace,
                            nullptr);
    };
    if (run() != CUBLAS_STATUS_SUCCESS) continue;
    best = std::min(best, Milliseconds([&] { run(); }));
  }
  cudaFree(workspace);
  cudaFree(bias);
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtMatmulDescDestroy(desc);
  cublasLtDestroy(handle);
  return best;
}

void BenchProduct(const Product& p) {
  std::vector<OperandSpec> inputs = {
      {"x", kType, p.trans_x ? Shape{p.k, p.m} : Shape{p.m, p.k}},
      {"y", kType, p.trans_y ? Shape{p.n, p.k} : Shape{p.k, p.n}}};
  if (p.bias) inputs.push_back({"bias", kType, Shape{p.n}});
  if (p.accumulate) inputs.push_back({"acc", kType, Shape{p.m, p.n}});
  AttrMap attrs;
  attrs.Set("trans_x", p.trans_x);
  attrs.Set("trans_y", p.trans_y);
  attrs.Set("accumulate", p.accumulate);
  double ms = 0, flops = 0;
  {
    std::vector<std::pair<std::string, std::string>> same;
    if (p.accumulate) same.push_back({"out", "acc"});
    OpRunner op("matmul", inputs, {"out"}, attrs, same, kCuda);
    ms = Milliseconds([&] { op.Run(); });
    flops = op.flops();
  }
  const double bare = BareMilliseconds(p);
  std::printf(
      "%-16s %6ld x %6ld x %6ld %8.3f ms %6.1f TFLOP/s, bare %8.3f ms, "
      "%5.1f %%\n",
      p.what, p.m, p.n, p.k, ms, flops / ms * 1e-9, bare, bare / ms * 100);
}

void BenchProducts() {
  const struct {
    const char* name;
    int64_t in, out;
    bool tied;
  } layers[] = {{"qkv", kHidden, 3 * kHidden, false},
                {"proj", kHidden, kHidden, false},
                {"fc1", kHidden, 4 * kHidden, false},
                {"fc2", 4 * kHidden, kHidden, false},
                {"head", kHidden, kVocab, true}};
  for (const auto& l : layers) {
    std::printf("%s\n", l.name);
    // A tied head's weight is [out, in].
    BenchProduct(
        {"  forward", kTokens, l.out, l.in, false, l.tied, !l.tied, false});
    BenchProduct(
        {"  dgrad", kTokens, l.in, l.out, false, !l.tied, false, false});
    for (bool accumulate : {false, true}) {
      const char* what = accumulate ? "  wgrad +=" : "  wgrad";
      if (l.tied) {
        BenchProduct(
            {what, l.out, l.in, kTokens, true, false, false, accumulate});
      } else {
        BenchProduct(
            {what, l.in, l.out, kTokens, true, false, false, accumulate});
      }
    }
  }
}

// --- Attention and the loss ---

void ReportFlops(const char* what, OpRunner& op, double flops) {
  const double ms = Milliseconds([&] { op.Run(); });
  std::printf("%-28s %8.3f ms %6.1f TFLOP/s, workspace %6.1f MiB\n", what, ms,
              flops / ms * 1e-9,
              static_cast<double>(op.workspace_bytes()) / (1 << 20));
}

void BenchAttention(DType dtype, int64_t heads, int64_t dim) {
  std::printf("attention %s, %ld x %ld, %ld heads of %ld\n",
              std::string(DTypeName(dtype)).c_str(), kBatch, kSeq, heads, dim);
  AttrMap attrs;
  attrs.Set("causal", true);
  attrs.Set("heads", heads);
  attrs.Set("kv_heads", heads);
  const int64_t width = heads * dim;
  std::vector<OperandSpec> inputs = {
      {"qkv", dtype, Shape{kBatch, kSeq, 3 * width}}};
  // Half of the scores, as others count them.
  const double product = 2.0 * kBatch * kSeq * kSeq * width / 2;
  {
    OpRunner op("attention_qkv", inputs, {"out", "lse"}, attrs, {}, kCuda);
    ReportFlops("  forward", op, 2 * product);
  }
  inputs.push_back({"out", dtype, Shape{kBatch, kSeq, width}});
  inputs.push_back({"lse", DType::kFp32, Shape{kBatch, heads, kSeq}});
  inputs.push_back({"dout", dtype, Shape{kBatch, kSeq, width}});
  OpRunner op("attention_qkv_grad", inputs, {"dqkv"}, attrs, {}, kCuda);
  ReportFlops("  backward", op, 5 * product);
}

void BenchLinearCrossEntropy() {
  std::printf("linear_cross_entropy %ld x %ld x %ld\n", kTokens, kVocab,
              kHidden);
  std::vector<OperandSpec> inputs = {{"x", kType, Shape{kTokens, kHidden}},
                                     {"weight", kType, Shape{kVocab, kHidden}},
                                     {"labels", DType::kInt32, Shape{kTokens}}};
  const double product = 2.0 * kTokens * kVocab * kHidden;
  {
    OpRunner op("linear_cross_entropy", inputs, {"loss_sum", "lse"}, {}, {},
                kCuda);
    ReportFlops("  forward", op, product);
  }
  inputs.push_back({"lse", DType::kFp32, Shape{kTokens}});
  inputs.push_back({"dloss", DType::kFp32, Shape{1}});
  OpRunner op("linear_cross_entropy_grad", inputs, {"dx", "dweight"}, {}, {},
              kCuda);
  ReportFlops("  backward", op, 3 * product);
}

// --- Kernels bound by memory ---

double CopyGigabytesPerSecond() {
  constexpr size_t kBytes = size_t{1} << 30;
  void* from = Allocate(kBytes);
  void* to = Allocate(kBytes);
  Check(cudaMemset(from, 0, kBytes));
  const double ms = Milliseconds([&] {
    Check(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, nullptr));
  });
  cudaFree(from);
  cudaFree(to);
  return 2 * static_cast<double>(kBytes) / ms * 1e-6;
}

void BenchBandwidth(
    double copy, const char* type, const std::vector<OperandSpec>& inputs,
    const std::vector<std::string>& outputs, AttrMap attrs = {},
    const std::vector<std::pair<std::string, std::string>>& same_as = {}) {
  if (!HasKernel(type)) return;
  OpRunner op(type, inputs, outputs, std::move(attrs), same_as, kCuda);
  if (std::string(type) == "adamw") {  // not a skipped step
    const float record[4] = {0, 1e-3f, 1, 1};
    kCuda.upload(op.Data("record"), record, sizeof(record));
    // Means of squares are not negative; 0x3c3c3c3c is 0.0115.
    const size_t bytes =
        sizeof(float) * static_cast<size_t>(inputs.back().shape.numel());
    Check(cudaMemset(op.Data("moment2"), 0x3c, bytes));
  }
  const double ms = Milliseconds([&] { op.Run(); });
  const double rate = op.operand_bytes() / ms * 1e-6;
  std::printf("%-28s %8.3f ms %7.1f GB/s, %5.1f %% of a copy\n", type, ms, rate,
              rate / copy * 100);
}

void BenchMemoryBound() {
  const double copy = CopyGigabytesPerSecond();
  std::printf("device copy %.1f GB/s\n", copy);
  const Shape rows{kTokens, kHidden}, wide{kTokens, 4 * kHidden};
  const OperandSpec weight{"weight", kType, Shape{kHidden}};
  const OperandSpec bias{"bias", kType, Shape{kHidden}};
  BenchBandwidth(copy, "layer_norm", {{"x", kType, rows}, weight, bias},
                 {"out", "mean", "rstd"});
  BenchBandwidth(copy, "layer_norm_grad",
                 {{"x", kType, rows},
                  weight,
                  {"mean", DType::kFp32, Shape{kTokens}},
                  {"rstd", DType::kFp32, Shape{kTokens}},
                  {"dout", kType, rows}},
                 {"dx", "dweight", "dbias"});
  BenchBandwidth(copy, "layer_norm_grad",
                 {{"x", kType, rows},
                  weight,
                  {"mean", DType::kFp32, Shape{kTokens}},
                  {"rstd", DType::kFp32, Shape{kTokens}},
                  {"dout", kType, rows},
                  {"dresidual", kType, rows}},
                 {"dx", "dweight", "dbias"});
  BenchBandwidth(copy, "reduce_rows", {{"x", kType, rows}}, {"out"});
  BenchBandwidth(copy, "reduce_rows", {{"x", kType, wide}}, {"out"});
  BenchBandwidth(copy, "gelu", {{"x", kType, wide}}, {"out"});
  BenchBandwidth(copy, "gelu_grad", {{"x", kType, wide}, {"dout", kType, wide}},
                 {"dx"});
  BenchBandwidth(copy, "gelu_grad", {{"x", kType, wide}, {"dout", kType, wide}},
                 {"dx", "out"});
  BenchBandwidth(copy, "add", {{"x", kType, rows}, {"y", kType, rows}},
                 {"out"});
  const int64_t params = int64_t{50} << 20;
  const std::vector<int64_t> begin = {0}, numel = {params}, clip = {1};
  const std::vector<double> one = {1.0};
  AttrMap adam;
  adam.Set("segment_begins", begin);
  adam.Set("segment_numels", numel);
  adam.Set("segment_weight_decay", one);
  adam.Set("segment_lr_scale", one);
  adam.Set("segment_need_clip", clip);
  const Shape flat{params};
  BenchBandwidth(copy, "adamw",
                 {{"grad", kType, flat},
                  {"record", DType::kFp32, Shape{16}},
                  {"master", DType::kFp32, flat},
                  {"moment1", DType::kFp32, flat},
                  {"moment2", DType::kFp32, flat}},
                 {"master", "moment1", "param", "moment2"}, adam,
                 {{"master", "master"},
                  {"moment1", "moment1"},
                  {"moment2", "moment2"},
                  {"param", "grad"}});
}

void Main() {
  BenchMemoryBound();
  BenchProducts();
  BenchAttention(kType, kHeads, kHeadDim);
  BenchAttention(kType, 2 * kHeads, kHeadDim / 2);
  BenchAttention(DType::kFp32, kHeads, kHeadDim);
  BenchLinearCrossEntropy();
}

}  // namespace
}  // namespace plo

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU\n");
    return 0;
  }
  try {
    plo::Main();
  } catch (const plo::Error& error) {
    std::printf("error: %s\n", error.what());
    return 1;
  }
  return 0;
}
