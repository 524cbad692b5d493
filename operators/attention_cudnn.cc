// Attention on cuDNN's flash attention graphs.
#include <cudnn_frontend.h>
#include <glog/logging.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "framework/ir/error.h"
#include "operators/attention_cuda.h"
#include "operators/rows.h"

namespace plo {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using TensorPtr = std::shared_ptr<Tensor_attributes>;

// Names of the graph's tensors.
enum Uid : int64_t { kQ = 1, kK, kV, kOut, kStats, kDout, kDq, kDk, kDv };

// One handle per device, kept until the process ends. Its stream is a property
// of the handle, so a call holds the lock from setting it to the launch.
struct Handle {
  std::mutex mutex;
  cudnnHandle_t cudnn = nullptr;
};

Handle& HandleOfCurrentDevice() {
  static std::mutex mutex;
  static auto& handles = *new std::map<int, Handle>;
  int device = 0;
  const cudaError_t status = cudaGetDevice(&device);
  PLO_ENFORCE(status == cudaSuccess, kInternal,
              "cudaGetDevice: ", cudaGetErrorString(status));
  std::lock_guard<std::mutex> lock(mutex);
  Handle& handle = handles[device];
  if (handle.cudnn == nullptr) {
    const cudnnStatus_t created = cudnnCreate(&handle.cudnn);
    PLO_ENFORCE(created == CUDNN_STATUS_SUCCESS, kInternal,
                "cudnnCreate: ", cudnnGetErrorString(created));
  }
  return handle;
}

// The sizes of one call.
struct Call {
  int64_t batch, heads, kv_heads, seq, dim;

  Call(const AttentionShape& s, const CudnnPart& part)
      : batch(part.batch),
        heads(part.kv_heads * (s.heads / s.kv_heads)),
        kv_heads(part.kv_heads),
        seq(s.seq),
        dim(s.dim) {}
};

Tensor_attributes Operand(const Call& call, Uid uid, const HeadsView& view,
                          int64_t heads) {
  return Tensor_attributes()
      .set_uid(uid)
      .set_dim({call.batch, heads, call.seq, call.dim})
      .set_stride({call.seq * view.row, call.dim, view.row, 1});
}

void SetOutput(const TensorPtr& tensor, const Call& call, Uid uid,
               const HeadsView& view, int64_t heads) {
  tensor->set_output(true)
      .set_uid(uid)
      .set_dim({call.batch, heads, call.seq, call.dim})
      .set_stride({call.seq * view.row, call.dim, view.row, 1});
}

std::vector<int64_t> StatsDims(const Call& call) {
  return {call.batch, call.heads, call.seq, 1};
}
std::vector<int64_t> StatsStrides(const Call& call) {
  return {call.heads * call.seq, call.seq, 1, 1};
}

void SetTypes(fe::graph::Graph& graph, DType dtype) {
  graph
      .set_io_data_type(dtype == DType::kBf16 ? fe::DataType_t::BFLOAT16
                                              : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
}

void BuildForward(fe::graph::Graph& graph, const AttentionShape& s,
                  const Call& call, const AttentionForward& op) {
  const TensorPtr q = graph.tensor(Operand(call, kQ, op.q, call.heads));
  const TensorPtr k = graph.tensor(Operand(call, kK, op.k, call.kv_heads));
  const TensorPtr v = graph.tensor(Operand(call, kV, op.v, call.kv_heads));
  auto [out, stats] = graph.sdpa(q, k, v,
                                 fe::graph::SDPA_attributes()
                                     .set_name("attention")
                                     .set_generate_stats(true)
                                     .set_attn_scale(s.scale)
                                     .set_causal_mask(s.causal));
  SetOutput(out, call, kOut, op.out, call.heads);
  stats->set_output(true)
      .set_uid(kStats)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim(StatsDims(call))
      .set_stride(StatsStrides(call));
}

void BuildBackward(fe::graph::Graph& graph, const AttentionShape& s,
                   const Call& call, const AttentionBackward& op) {
  const TensorPtr q = graph.tensor(Operand(call, kQ, op.q, call.heads));
  const TensorPtr k = graph.tensor(Operand(call, kK, op.k, call.kv_heads));
  const TensorPtr v = graph.tensor(Operand(call, kV, op.v, call.kv_heads));
  const TensorPtr out = graph.tensor(Operand(call, kOut, op.out, call.heads));
  const TensorPtr dout =
      graph.tensor(Operand(call, kDout, op.dout, call.heads));
  const TensorPtr stats = graph.tensor(Tensor_attributes()
                                           .set_uid(kStats)
                                           .set_data_type(fe::DataType_t::FLOAT)
                                           .set_dim(StatsDims(call))
                                           .set_stride(StatsStrides(call)));
  auto [dq, dk, dv] =
      graph.sdpa_backward(q, k, v, out, dout, stats,
                          fe::graph::SDPA_backward_attributes()
                              .set_name("attention_grad")
                              .set_attn_scale(s.scale)
                              .set_causal_mask(s.causal)
                              .set_deterministic_algorithm(true));
  SetOutput(dq, call, kDq, op.dq, call.heads);
  SetOutput(dk, call, kDk, op.dk, call.kv_heads);
  SetOutput(dv, call, kDv, op.dv, call.kv_heads);
}

class CudnnAttentionImpl : public CudnnAttention {
 public:
  CudnnAttentionImpl(const AttentionShape& shape, const CudnnPart& part)
      : shape_(shape),
        part_(part),
        call_(shape, part),
        handle_(HandleOfCurrentDevice()) {
    SetTypes(graph_, shape.dtype);
  }

  // Takes the first plan of heuristic mode A for the graph that `build` makes.
  // False, with a warning, if the device or cuDNN has none.
  template <typename Build>
  bool Make(const char* what, int64_t workspace_bytes, const Build& build) {
    std::lock_guard<std::mutex> lock(handle_.mutex);
    fe::error_t error;
    try {
      build(graph_, call_);
      error = graph_.validate();
      if (error.is_good()) error = graph_.build_operation_graph(handle_.cudnn);
      if (error.is_good()) {
        error = graph_.create_execution_plans({fe::HeurMode_t::A});
      }
      if (error.is_good()) error = graph_.check_support();
      if (error.is_good()) error = graph_.build_plans();
    } catch (const std::runtime_error& refusal) {
      error = {fe::error_code_t::GRAPH_NOT_SUPPORTED, refusal.what()};
    }
    if (error.is_bad()) {
      LOG(WARNING) << what << " of " << DTypeName(shape_.dtype) << ", batch "
                   << shape_.batch << ", sequence " << shape_.seq << ", heads "
                   << shape_.heads << " (" << shape_.kv_heads
                   << " of keys), head size " << shape_.dim
                   << " runs without cuDNN: " << error.get_message();
      return false;
    }
    int64_t needed = 0;
    Check(graph_.get_workspace_size(needed), "get_workspace_size");
    PLO_ENFORCE(needed <= workspace_bytes, kInternal, what,
                ": cuDNN needs a workspace of ", needed, " bytes, ",
                workspace_bytes, " are planned");
    return true;
  }

  void Forward(const AttentionForward& op, void* workspace,
               void* stream) override {
    ForEachPart([&](int64_t sample, int64_t kv_head) {
      const int64_t head = kv_head * group();
      std::unordered_map<int64_t, void*> operands = {
          {kQ, At(op.q, sample, head)},
          {kK, At(op.k, sample, kv_head)},
          {kV, At(op.v, sample, kv_head)},
          {kOut, At(op.out, sample, head)},
          {kStats, op.lse + StatsOffset(sample, head)}};
      Execute(operands, workspace, stream);
    });
  }

  void Backward(const AttentionBackward& op, void* workspace,
                void* stream) override {
    ForEachPart([&](int64_t sample, int64_t kv_head) {
      const int64_t head = kv_head * group();
      // The variant pack has no const pointers; cuDNN only reads the inputs.
      float* lse = const_cast<float*>(op.lse) + StatsOffset(sample, head);
      std::unordered_map<int64_t, void*> operands = {
          {kQ, At(op.q, sample, head)},       {kK, At(op.k, sample, kv_head)},
          {kV, At(op.v, sample, kv_head)},    {kOut, At(op.out, sample, head)},
          {kDout, At(op.dout, sample, head)}, {kStats, lse},
          {kDq, At(op.dq, sample, head)},     {kDk, At(op.dk, sample, kv_head)},
          {kDv, At(op.dv, sample, kv_head)}};
      Execute(operands, workspace, stream);
    });
  }

 private:
  static void Check(fe::error_t error, const char* what) {
    PLO_ENFORCE(error.is_good(), kInternal, "cuDNN attention, ", what, ": ",
                error.get_message());
  }

  int64_t group() const { return shape_.heads / shape_.kv_heads; }

  void* At(const HeadsView& view, int64_t sample, int64_t head) const {
    return ElementAt(shape_.dtype, view.data,
                     sample * shape_.seq * view.row + head * shape_.dim);
  }
  int64_t StatsOffset(int64_t sample, int64_t head) const {
    return (sample * shape_.heads + head) * shape_.seq;
  }

  template <typename Fn>
  void ForEachPart(const Fn& fn) {
    for (int64_t b = 0; b < shape_.batch; b += part_.batch) {
      for (int64_t h = 0; h < shape_.kv_heads; h += part_.kv_heads) fn(b, h);
    }
  }

  void Execute(std::unordered_map<int64_t, void*>& operands, void* workspace,
               void* stream) {
    std::lock_guard<std::mutex> lock(handle_.mutex);
    const cudnnStatus_t status =
        cudnnSetStream(handle_.cudnn, static_cast<cudaStream_t>(stream));
    PLO_ENFORCE(status == CUDNN_STATUS_SUCCESS, kInternal,
                "cudnnSetStream: ", cudnnGetErrorString(status));
    Check(graph_.execute(handle_.cudnn, operands, workspace), "execute");
  }

  const AttentionShape shape_;
  const CudnnPart part_;
  const Call call_;
  Handle& handle_;
  fe::graph::Graph graph_;
};

}  // namespace

std::unique_ptr<CudnnAttention> MakeCudnnForward(const AttentionShape& shape,
                                                 const AttentionForward& op,
                                                 int64_t workspace_bytes) {
  auto attention =
      std::make_unique<CudnnAttentionImpl>(shape, CudnnForwardPart(shape));
  const auto build = [&](fe::graph::Graph& graph, const Call& call) {
    BuildForward(graph, shape, call, op);
  };
  if (!attention->Make("attention", workspace_bytes, build)) return nullptr;
  return attention;
}

std::unique_ptr<CudnnAttention> MakeCudnnBackward(const AttentionShape& shape,
                                                  const AttentionBackward& op,
                                                  int64_t workspace_bytes) {
  auto attention =
      std::make_unique<CudnnAttentionImpl>(shape, CudnnBackwardPart(shape));
  const auto build = [&](fe::graph::Graph& graph, const Call& call) {
    BuildBackward(graph, shape, call, op);
  };
  if (!attention->Make("attention_grad", workspace_bytes, build)) {
    return nullptr;
  }
  return attention;
}

}  // namespace plo
