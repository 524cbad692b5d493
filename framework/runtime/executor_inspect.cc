// Executor: reading and writing params and states, measurements, traces.
#include <algorithm>

#include "framework/ir/error.h"
#include "framework/ir/op_registry.h"
#include "framework/runtime/executor_core.h"
#include "framework/runtime/memory_check.h"
#include "glog/logging.h"

namespace plo {
namespace {

int64_t BytesMoved(const BoundLaunch& bound) {
  const bool copies =
      bound.is_ring() ||
      OpRegistry::Global().Get(bound.op->type).where == OpSchema::Where::kCopy;
  int64_t bytes = 0;
  for (const BoundRange& range : bound.ranges) {
    if (copies) {
      bytes += range.write ? range.bytes : 0;
    } else if (range.var != kNoId) {
      bytes += (range.read + range.write) * range.bytes;
    }
  }
  return bytes;
}

}  // namespace

ExecutorCore::~ExecutorCore() {
  try {
    Drain();
  } catch (const std::exception& error) {
    LOG(ERROR) << "an error nobody asked for: " << error.what();
  }
  FreeArenas();
}

BoundRange ExecutorCore::PersistentRange(std::string_view name) const {
  const Var& var = program.var(program.GetVar(name));
  const VarId owner = program.StorageOf(var.id);
  for (size_t i = 0; i < plan.storages.size(); ++i) {
    const Storage& storage = plan.storages[i];
    if (storage.var != owner || storage.graph != 0) continue;
    if (!storage.persistent) break;
    BoundRange range;
    range.data = arena(storage.place) + storage.offset +
                 program.OffsetInStorage(var.id, env.rank);
    range.bytes = var.bytes();
    range.storage = static_cast<StorageIndex>(i);
    range.var = var.id;
    range.write = true;
    return range;
  }
  PLO_THROW(kInvalidArgument, Describe(var),
            " does not outlive a step: only params, states and their views do");
}

HostTensor ExecutorCore::ReadVar(std::string_view name) {
  const BoundRange range = PersistentRange(name);
  Drain();
  const Var& var = program.var(range.var);
  HostTensor value;
  value.dtype = var.dtype;
  value.shape = var.shape;
  value.data.resize(static_cast<size_t>(range.bytes));
  device.Read(range.data, value.data.data(), range.bytes);
  return value;
}

void ExecutorCore::WriteVar(std::string_view name, const HostTensor& value) {
  const BoundRange range = PersistentRange(name);
  const Var& var = program.var(range.var);
  PLO_ENFORCE(value.dtype == var.dtype && value.shape == var.shape &&
                  static_cast<int64_t>(value.data.size()) == range.bytes,
              kInvalidArgument, Describe(var), " is given ", value.dtype, " ",
              value.shape, " in ", value.data.size(), " bytes");
  Drain();
  device.Write(value.data.data(), range.data, range.bytes);
  if (check_ != nullptr) check_->NoteWrite(range);
}

MemoryMeasurement ExecutorCore::MeasureMemory() {
  Drain();
  MemoryMeasurement result;
  result.arena_bytes = plan.device.arena_bytes;
  result.pinned_bytes = plan.pinned.arena_bytes;
  result.device = device.stats();
  if (options.canary) {
    result.measured_peak_bytes =
        TouchedBytes(device, device_arena, result.arena_bytes + guard_bytes);
  }
  const LivePeak live = MeasureLivePeak(*this);
  result.live_peak_bytes = live.bytes;
  result.by_category = live.by_category;
  return result;
}

std::vector<TraceEvent> ExecutorCore::TakeTrace() {
  std::vector<TraceEvent> events;
  for (TraceLog& log : trace) {
    for (const TraceLog::Entry& entry : log.Take()) {
      StreamTracer::Span span{entry.start_us, entry.duration_us};
      if (entry.span >= 0 && !device.tracer()->Take(entry.span, span)) {
        log.Add(entry);  // still runs
        continue;
      }
      const Launch& launch = *entry.bound->launch;
      TraceEvent& event = events.emplace_back();
      if (launch.kind == LaunchKind::kOp) {
        event.name = entry.bound->op->type;
        const std::string& region = entry.bound->op->region;
        if (!region.empty()) event.name += " " + region;
      } else {
        event.name = launch.kind == LaunchKind::kFeed ? "feed " : "fetch ";
        event.name += entry.bound->graph->program->var(launch.var).name;
      }
      event.stream = launch.stream;
      event.start_us = span.start_us;
      event.duration_us = span.duration_us;
      event.data_step = entry.data_step;
      event.bytes = BytesMoved(*entry.bound);
    }
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const TraceEvent& a, const TraceEvent& b) {
                     return a.start_us < b.start_us;
                   });
  return events;
}

}  // namespace plo
