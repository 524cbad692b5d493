// Executor: enqueuing steps.
//
// On a GPU, enqueuing can take longer than the work. Most launches are the same
// in every step: addresses are planned once, and what changes (feeds, learning
// rate, loss scale) is read from memory. So the issue order is cut into
// segments, and those that repeat are recorded when they have been launched
// once, with their kernels' caches made; later steps replay them.
#include <algorithm>

#include "framework/ir/op_registry.h"
#include "framework/runtime/executor_core.h"
#include "framework/runtime/memory_check.h"

namespace plo {
namespace {

// A recording of fewer launches gains nothing.
constexpr size_t kShortestRecording = 4;

void RunBoundLaunch(void* context, const StepInfo& step, void* native_stream) {
  static_cast<BoundLaunch*>(context)->Execute(step, native_stream);
}

// No more than the kernel: whether it may run is asked when it is replayed.
void RecordBoundLaunch(void* context, const StepInfo& step,
                       void* native_stream) {
  BoundLaunch& bound = *static_cast<BoundLaunch*>(context);
  bound.contexts[0].Begin(step, native_stream);
  bound.kernel(bound.contexts[0]);
}

bool Repeats(const BoundLaunch& bound) {
  return !bound.is_ring() && bound.launch->stream == StreamKind::kCompute &&
         OpRegistry::Global().Get(bound.op->type).repeats();
}

// Cuts `launches` into segments. Short ones that repeat join their neighbours:
// they are launched one by one.
std::vector<Segment> Cut(const std::vector<BoundLaunch*>& launches) {
  std::vector<Segment> segments;
  const auto add = [&](auto begin, auto end) {
    const bool repeats =
        end - begin >= static_cast<std::ptrdiff_t>(kShortestRecording) &&
        Repeats(**begin);
    if (repeats || segments.empty() || segments.back().repeats) {
      segments.emplace_back().repeats = repeats;
    }
    auto& all = segments.back().launches;
    all.insert(all.end(), begin, end);
  };
  for (auto begin = launches.begin(); begin != launches.end();) {
    auto end = begin + 1;
    if (Repeats(**begin)) {
      while (end != launches.end() && Repeats(**end) &&
             (*end)->launch->waits.empty() && !(*(end - 1))->waited_on) {
        ++end;
      }
    }
    add(begin, end);
    begin = end;
  }
  return segments;
}

}  // namespace

void ExecutorCore::MakeSegments(BoundGraph& graph) const {
  const auto micro_count = static_cast<size_t>(graph.plan->micro_count);
  std::vector<BoundLaunch*> first, later, update;
  for (size_t i = 0; i < graph.launches.size(); ++i) {
    BoundLaunch& bound = graph.launches[i];
    if (i >= micro_count) {
      update.push_back(&bound);
      continue;
    }
    first.push_back(&bound);
    if (!bound.once_per_step()) later.push_back(&bound);
  }
  graph.first_micro = Cut(first);
  graph.later_micro = Cut(later);
  graph.update = Cut(update);
  if (options.replay && check_ == nullptr && !options.trace &&
      !options.delay_us) {
    return;
  }
  for (auto* part : {&graph.first_micro, &graph.later_micro, &graph.update}) {
    for (Segment& segment : *part) segment.repeats = false;
  }
}

void ExecutorCore::IssueStep(BoundGraph& graph) {
  running_ = &graph;
  for (int micro = 0; micro < graph.plan->accumulate_steps; ++micro) {
    auto& segments = micro == 0 ? graph.first_micro : graph.later_micro;
    for (Segment& segment : segments) Issue(graph, segment, micro);
  }
  for (Segment& segment : graph.update) Issue(graph, segment, 0);
  ++graph.steps;
}

void ExecutorCore::Issue(BoundGraph& graph, Segment& segment, int micro_index) {
  if (segment.recording) return Replay(graph, segment);
  for (BoundLaunch* bound : segment.launches) {
    Issue(graph, *bound, micro_index);
  }
  if (segment.repeats && !failure.failed()) Record(segment, micro_index);
}

void ExecutorCore::Record(Segment& segment, int micro_index) {
  std::vector<Task> tasks;
  for (BoundLaunch* bound : segment.launches) {
    tasks.push_back(MakeTask(*bound, micro_index));
    tasks.back().run = RecordBoundLaunch;
  }
  BoundLaunch& first = *segment.launches.front();
  segment.repeats = false;  // not tried again
  try {
    segment.recording = device.Record(first.stream, tasks);
  } catch (...) {
    Fail(first, first.Sequence(first.runs - 1), first.CaughtError());
  }
}

void ExecutorCore::Replay(BoundGraph& graph, Segment& segment) {
  BoundLaunch& first = *segment.launches.front();
  const BoundLaunch& last = *segment.launches.back();
  IssueWaits(graph, first);
  Ticket& issued = issued_[static_cast<size_t>(first.launch->stream)];
  // As Execute() asks for each.
  if (last.Sequence(last.runs) < failure.sequence()) {
    issued = device.Replay(first.stream, *segment.recording, last.waited_on);
  }
  for (BoundLaunch* bound : segment.launches) {
    ++bound->runs;
    bound->last_ticket = issued;
  }
}

void ExecutorCore::IssueWaits(const BoundGraph& graph,
                              const BoundLaunch& bound) {
  for (const LaunchIndex index : bound.launch->waits) {
    const BoundLaunch& of = graph.launches[static_cast<size_t>(index)];
    if (of.last_ticket > 0) {
      device.Wait(bound.stream, of.stream, of.last_ticket);
    }
  }
}

Task ExecutorCore::MakeTask(BoundLaunch& bound, int micro_index) const {
  Task task;
  task.run = RunBoundLaunch;
  task.context = &bound;
  task.step.data_step = data_step;
  task.step.micro_index = micro_index;
  return task;
}

void ExecutorCore::Issue(BoundGraph& graph, BoundLaunch& bound,
                         int micro_index) {
  IssueWaits(graph, bound);
  Task task = MakeTask(bound, micro_index);
  task.waited_on = bound.waited_on;
  Ticket& issued = issued_[static_cast<size_t>(bound.launch->stream)];
  if (check_ == nullptr) {
    issued = device.Launch(bound.stream, task);
  } else {
    IssueChecked(bound, task, bound.Sequence(bound.runs));
  }
  bound.last_ticket = issued;
}

// Runs one launch to its end, with the checks around it.
void ExecutorCore::IssueChecked(BoundLaunch& bound, const Task& task,
                                uint64_t sequence) {
  const auto guarded = [&](auto&& check) {
    if (failure.failed()) return;
    try {
      check();
    } catch (...) {
      Fail(bound, sequence, bound.CaughtError());
    }
  };
  guarded([&] { check_->Before(bound); });
  Ticket& issued = issued_[static_cast<size_t>(bound.launch->stream)];
  issued = device.Launch(bound.stream, task);
  guarded([&] { device.Synchronize(bound.stream, issued); });
  guarded([&] { check_->After(bound); });
}

}  // namespace plo
