#include "framework/runtime/cuda_tracer.h"

#include <nvtx3/nvToolsExt.h>

#include <chrono>

#include "framework/runtime/cuda_status.h"

namespace plo {
namespace {

constexpr double kRebaseUs = 5e6;

double NowUs() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

float ElapsedMs(cudaEvent_t from, cudaEvent_t to) {
  float ms = 0;
  CheckCuda(cudaEventElapsedTime(&ms, from, to), "cudaEventElapsedTime");
  return ms;
}

}  // namespace

CudaTracer::CudaTracer() {
  CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
            "cudaStreamCreateWithFlags");
  AddBase();
}

CudaTracer::~CudaTracer() {
  for (const auto& [id, span] : pending_) {
    cudaEventDestroy(span.begin);
    cudaEventDestroy(span.end);
  }
  for (const cudaEvent_t event : free_) cudaEventDestroy(event);
  for (const Base& base : bases_) cudaEventDestroy(base.event);
  cudaStreamDestroy(stream_);
  cudaGetLastError();
}

void CudaTracer::AddBase() {
  Base base;
  base.event = TakeEvent();
  CheckCuda(cudaEventRecord(base.event, stream_), "cudaEventRecord");
  CheckCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  base.host_us = NowUs();
  bases_.push_back(base);
}

cudaEvent_t CudaTracer::TakeEvent() {
  cudaEvent_t event = nullptr;
  if (free_.empty()) {
    CheckCuda(cudaEventCreate(&event), "cudaEventCreate");
  } else {
    event = free_.back();
    free_.pop_back();
  }
  return event;
}

int64_t CudaTracer::Begin(void* native_stream, const char* name) {
  if (NowUs() - bases_.back().host_us > kRebaseUs) AddBase();
  Pending span;
  span.stream = static_cast<cudaStream_t>(native_stream);
  span.begin = TakeEvent();
  span.end = TakeEvent();
  span.base = bases_.size() - 1;
  CheckCuda(cudaEventRecord(span.begin, span.stream), "cudaEventRecord");
  pending_.emplace(next_, span);
  nvtxRangePushA(name);
  return next_++;
}

void CudaTracer::End(int64_t span) {
  nvtxRangePop();
  const Pending& pending = pending_.at(span);
  CheckCuda(cudaEventRecord(pending.end, pending.stream), "cudaEventRecord");
}

bool CudaTracer::Take(int64_t span, Span& result) {
  const auto it = pending_.find(span);
  const Pending& pending = it->second;
  cudaError_t failure;
  if (!IsDone(cudaEventQuery(pending.end), failure)) {
    CheckCuda(failure, "cudaEventQuery");
    return false;
  }
  const Base& base = bases_[pending.base];
  result.start_us = base.host_us + 1e3 * ElapsedMs(base.event, pending.begin);
  result.duration_us = 1e3 * ElapsedMs(pending.begin, pending.end);
  free_.push_back(pending.begin);
  free_.push_back(pending.end);
  pending_.erase(it);
  return true;
}

}  // namespace plo
