#include "operators/onednn_matmul.h"

#include <algorithm>
#include <cstddef>
#include <dnnl.hpp>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "framework/ir/error.h"

namespace plo {
namespace {

using Desc = dnnl::memory::desc;
using PrimitiveDesc = dnnl::matmul::primitive_desc;

dnnl::memory::data_type TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return dnnl::memory::data_type::f32;
    case DType::kBf16:
      return dnnl::memory::data_type::bf16;
    case DType::kFp16:
      return dnnl::memory::data_type::f16;
    default:
      PLO_THROW(kInternal, "matrix product of ", dtype);
  }
}

// A [rows, cols] operand; `trans` if stored as [cols, rows].
Desc DescOf(const GemmCall& g, int64_t rows, int64_t cols, int64_t stride,
            bool trans) {
  // A matrix of one row or column may come with any stride.
  stride = std::max(stride, trans ? rows : cols);
  return Desc(
      {rows, cols}, TypeOf(g.dtype),
      trans ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1});
}

// Empty if oneDNN has none.
PrimitiveDesc MakePrimitiveDesc(const GemmCall& g, const dnnl::engine& engine) {
  const Desc a = DescOf(g, g.m, g.k, g.stride_a, g.trans_a);
  const Desc b = DescOf(g, g.k, g.n, g.stride_b, g.trans_b);
  const Desc c = DescOf(g, g.m, g.n, g.stride_c, false);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  // Whatever ONEDNN_DEFAULT_FPMATH_MODE says.
  attributes.set_fpmath_mode(dnnl::fpmath_mode::strict);
  if (g.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const auto op =
      g.bias == nullptr
          ? dnnl::matmul::desc(a, b, c)
          : dnnl::matmul::desc(a, b, DescOf(g, 1, g.n, g.n, false), c);
  return PrimitiveDesc(op, attributes, engine, true);
}

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// Whether oneDNN has more than plain loops for it.
bool IsFast(const PrimitiveDesc& desc) {
  return desc.get(true) != nullptr && !StartsWith(desc.impl_info_str(), "ref");
}

// Grows to the most that a product on this thread needs, and stays.
void* ThreadScratch(int64_t bytes) {
  thread_local std::vector<std::byte> scratch;
  const auto size = static_cast<size_t>(bytes);
  if (scratch.size() < size) scratch.resize(size);
  return scratch.data();
}

// Runs `fn`, whose exceptions of oneDNN become plo::Error.
template <typename Fn>
decltype(auto) Translated(const GemmCall& g, Fn&& fn) {
  try {
    return fn();
  } catch (const dnnl::error& error) {
    PLO_THROW(kInternal, "oneDNN's matmul in ", g.dtype, " of m = ", g.m,
              ", n = ", g.n, ", k = ", g.k, ": ", error.what(), " (status ",
              static_cast<int>(error.status), ")");
  }
}

bool AskOnednn(DType dtype) {
  // With AVX-512 alone oneDNN emulates bf16, at less than the speed of fp32.
  const unsigned needed = static_cast<unsigned>(dnnl_cpu_isa_avx512_core_bf16);
  const unsigned isa = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  if (dtype != DType::kFp32 && (isa & needed) != needed) return false;
  GemmCall call;
  call.dtype = dtype;
  call.m = call.n = call.k = 256;
  return Translated(call, [&] {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    const PrimitiveDesc desc = MakePrimitiveDesc(call, engine);
    if (!IsFast(desc)) return false;
    // Else it calls sgemm, as RunGemm() does after better preparations.
    return dtype != DType::kFp32 || StartsWith(desc.impl_info_str(), "brg");
  });
}

}  // namespace

bool UsesOnednnMatmul(DType dtype) {
  static const bool fp32 = AskOnednn(DType::kFp32);
  static const bool bf16 = AskOnednn(DType::kBf16);
  static const bool fp16 = AskOnednn(DType::kFp16);
  return (dtype == DType::kFp32 && fp32) || (dtype == DType::kBf16 && bf16) ||
         (dtype == DType::kFp16 && fp16);
}

struct OnednnMatmul::Impl {
  Impl(const PrimitiveDesc& desc, const dnnl::engine& engine)
      : stream(engine),
        primitive(desc),
        scratch_bytes(static_cast<int64_t>(desc.scratchpad_desc().get_size())) {
    const auto add = [&](int argument, const Desc& md) {
      if (md.get_size() == 0) return;
      arguments.emplace(argument, dnnl::memory(md, engine, DNNL_MEMORY_NONE));
    };
    add(DNNL_ARG_SRC, desc.src_desc());
    add(DNNL_ARG_WEIGHTS, desc.weights_desc());
    add(DNNL_ARG_BIAS, desc.bias_desc());
    add(DNNL_ARG_DST, desc.dst_desc());
    add(DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc());
  }

  void Point(int argument, const void* data) {
    const auto found = arguments.find(argument);
    if (found == arguments.end()) return;
    found->second.set_data_handle(const_cast<void*>(data));
  }

  dnnl::stream stream;
  dnnl::matmul primitive;
  std::unordered_map<int, dnnl::memory> arguments;
  int64_t scratch_bytes;
};

std::optional<OnednnMatmul> OnednnMatmul::Find(const GemmCall& call) {
  return Translated(call, [&]() -> std::optional<OnednnMatmul> {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    const PrimitiveDesc desc = MakePrimitiveDesc(call, engine);
    if (!IsFast(desc)) return std::nullopt;
    return OnednnMatmul(std::make_unique<Impl>(desc, engine));
  });
}

OnednnMatmul::OnednnMatmul(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
OnednnMatmul::~OnednnMatmul() = default;
OnednnMatmul::OnednnMatmul(OnednnMatmul&&) noexcept = default;
OnednnMatmul& OnednnMatmul::operator=(OnednnMatmul&&) noexcept = default;

int64_t OnednnMatmul::scratch_bytes() const { return impl_->scratch_bytes; }

void OnednnMatmul::Run(const GemmCall& call, void* workspace,
                       int64_t workspace_bytes) {
  const int64_t scratch = impl_->scratch_bytes;
  Translated(call, [&] {
    impl_->Point(DNNL_ARG_SRC, call.a);
    impl_->Point(DNNL_ARG_WEIGHTS, call.b);
    impl_->Point(DNNL_ARG_BIAS, call.bias);
    impl_->Point(DNNL_ARG_DST, call.c);
    impl_->Point(DNNL_ARG_SCRATCHPAD, scratch <= workspace_bytes
                                          ? workspace
                                          : ThreadScratch(scratch));
    impl_->primitive.execute(impl_->stream, impl_->arguments);
    impl_->stream.wait();
  });
}

}  // namespace plo
