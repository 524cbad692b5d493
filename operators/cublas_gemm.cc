#include "operators/cublas_gemm.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <type_traits>

#include "framework/ir/error.h"

namespace plo {
namespace {

void Check(cublasStatus_t status, const char* what) {
  PLO_ENFORCE(status == CUBLAS_STATUS_SUCCESS, kInternal, what, ": ",
              cublasLtGetStatusName(status));
}

cudaDataType_t DataTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return CUDA_R_32F;
    case DType::kBf16:
      return CUDA_R_16BF;
    case DType::kFp16:
      return CUDA_R_16F;
    default:
      PLO_THROW(kInternal, "matrix product of ", dtype);
  }
}

// One handle per device, kept until the process ends: the driver may be gone
// when static objects are destroyed.
cublasLtHandle_t HandleOfCurrentDevice() {
  static std::mutex mutex;
  static auto& handles = *new std::map<int, cublasLtHandle_t>;
  int device = 0;
  const cudaError_t status = cudaGetDevice(&device);
  PLO_ENFORCE(status == cudaSuccess, kInternal,
              "cudaGetDevice: ", cudaGetErrorString(status));
  std::lock_guard<std::mutex> lock(mutex);
  cublasLtHandle_t& handle = handles[device];
  if (handle == nullptr) Check(cublasLtCreate(&handle), "cublasLtCreate");
  return handle;
}

template <typename T, cublasStatus_t (*kDestroy)(T)>
struct Destroyer {
  void operator()(T object) const { kDestroy(object); }
};
template <typename T, cublasStatus_t (*kDestroy)(T)>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroyer<T, kDestroy>>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Preference =
    Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// Row-major [rows, cols] is column-major [cols, rows].
Layout MakeLayout(DType dtype, int64_t rows, int64_t cols, int64_t stride,
                  int64_t batch, int64_t batch_stride) {
  cublasLtMatrixLayout_t raw = nullptr;
  Check(cublasLtMatrixLayoutCreate(&raw, DataTypeOf(dtype),
                                   static_cast<uint64_t>(cols),
                                   static_cast<uint64_t>(rows), stride),
        "cublasLtMatrixLayoutCreate");
  Layout layout(raw);
  if (batch == 1) return layout;
  const int32_t count = static_cast<int32_t>(batch);
  Check(cublasLtMatrixLayoutSetAttribute(
            raw, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
        "cublasLtMatrixLayoutSetAttribute");
  Check(cublasLtMatrixLayoutSetAttribute(
            raw, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride,
            sizeof(batch_stride)),
        "cublasLtMatrixLayoutSetAttribute");
  return layout;
}

template <typename T>
void Set(cublasLtMatmulDesc_t description,
         cublasLtMatmulDescAttributes_t attribute, const T& value) {
  Check(cublasLtMatmulDescSetAttribute(description, attribute, &value,
                                       sizeof(value)),
        "cublasLtMatmulDescSetAttribute");
}

template <typename T>
void Set(cublasLtMatmulPreference_t preference,
         cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  Check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value,
                                             sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute");
}

Description MakeDescription(const CublasGemmSpec& spec) {
  cublasLtMatmulDesc_t raw = nullptr;
  Check(cublasLtMatmulDescCreate(&raw, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  Description description(raw);
  // c^T = op(b)^T * op(a)^T: b comes first.
  Set(raw, CUBLASLT_MATMUL_DESC_TRANSA,
      spec.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  Set(raw, CUBLASLT_MATMUL_DESC_TRANSB,
      spec.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (spec.bias != nullptr) {
    Set(raw, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    Set(raw, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
        static_cast<int32_t>(DataTypeOf(spec.out_dtype)));
    Set(raw, CUBLASLT_MATMUL_DESC_BIAS_POINTER, spec.bias);
  }
  return description;
}

Preference MakePreference(const CublasGemmSpec& spec) {
  cublasLtMatmulPreference_t raw = nullptr;
  Check(cublasLtMatmulPreferenceCreate(&raw), "cublasLtMatmulPreferenceCreate");
  Preference preference(raw);
  Set(raw, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<uint64_t>(spec.workspace_bytes));
  Set(raw, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  Set(raw, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, spec.align_b);
  Set(raw, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, spec.align_a);
  Set(raw, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, spec.align_c);
  // The epilogue reads the bias as it writes the output.
  const uint32_t align_bias =
      spec.bias == nullptr ? kGemmAlignment : GemmAlignmentOf(spec.bias);
  Set(raw, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
      std::min(spec.align_c, align_bias));
  return preference;
}

}  // namespace

struct CublasGemm::Impl {
  explicit Impl(const CublasGemmSpec& s)
      : spec(s),
        handle(HandleOfCurrentDevice()),
        description(MakeDescription(s)),
        a(MakeLayout(s.dtype, s.trans_a ? s.k : s.m, s.trans_a ? s.m : s.k,
                     s.stride_a, s.batch, s.batch_stride_a)),
        b(MakeLayout(s.dtype, s.trans_b ? s.n : s.k, s.trans_b ? s.k : s.n,
                     s.stride_b, s.batch, s.batch_stride_b)),
        c(MakeLayout(s.out_dtype, s.m, s.n, s.stride_c, s.batch,
                     s.batch_stride_c)) {}

  CublasGemmSpec spec;
  cublasLtHandle_t handle;
  Description description;
  Layout a, b, c;
  cublasLtMatmulAlgo_t algorithm{};
};

CublasGemm::CublasGemm(const CublasGemmSpec& spec)
    : impl_(std::make_unique<Impl>(spec)) {
  const Preference preference = MakePreference(spec);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      impl_->handle, impl_->description.get(), impl_->b.get(), impl_->a.get(),
      impl_->c.get(), impl_->c.get(), preference.get(), 1, &result, &found);
  PLO_ENFORCE(status == CUBLAS_STATUS_SUCCESS && found == 1 &&
                  result.state == CUBLAS_STATUS_SUCCESS,
              kUnimplemented, "cuBLASLt has no algorithm for ", spec.dtype,
              " [", spec.m, ", ", spec.k, "] x [", spec.k, ", ", spec.n,
              "], batch ", spec.batch, ": ", cublasLtGetStatusName(status));
  impl_->algorithm = result.algo;
}

CublasGemm::~CublasGemm() = default;
CublasGemm::CublasGemm(CublasGemm&&) noexcept = default;

void CublasGemm::Run(const void* a, const void* b, void* c, void* workspace,
                     void* stream) const {
  const Impl& impl = *impl_;
  const float alpha = 1.0f;
  const float beta = impl.spec.accumulate ? 1.0f : 0.0f;
  Check(cublasLtMatmul(impl.handle, impl.description.get(), &alpha, b,
                       impl.b.get(), a, impl.a.get(), &beta, c, impl.c.get(), c,
                       impl.c.get(), &impl.algorithm, workspace,
                       static_cast<size_t>(impl.spec.workspace_bytes),
                       static_cast<cudaStream_t>(stream)),
        "cublasLtMatmul");
}

uint32_t GemmAlignmentOf(const void* address) {
  const auto value = static_cast<uint32_t>(
      reinterpret_cast<uintptr_t>(address) % kGemmAlignment);
  return value == 0 ? kGemmAlignment : value & (~value + 1);
}

}  // namespace plo
