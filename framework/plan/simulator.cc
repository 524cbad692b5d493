#include "framework/plan/simulator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "framework/plan/report.h"

namespace plo {
namespace {

double OperandBytes(const Launch& launch) {
  double bytes = 0;
  for (const Operand& operand : launch.operands) {
    bytes += static_cast<double>(operand.bytes);
  }
  return bytes;
}

// Bytes that cross the link: a copy's target.
double CopiedBytes(const Launch& launch) {
  double bytes = 0;
  for (const Operand& operand : launch.operands) {
    if (operand.write) bytes += static_cast<double>(operand.bytes);
  }
  return bytes;
}

// By the first input: labels and statistics come later.
double FlopRate(const Program& program, const Op& op, const Rates& rates) {
  const bool wide = !op.inputs.empty() && !op.inputs[0].vars.empty() &&
                    program.var(op.inputs[0].vars[0]).dtype == DType::kFp32;
  return wide ? rates.matmul_flops_fp32 : rates.matmul_flops;
}

// Microseconds a launch keeps its stream busy.
double Duration(const Plan& plan, const Program& program, const Launch& launch,
                const Rates& rates, const OpRegistry& registry) {
  if (launch.kind != LaunchKind::kOp) {
    const double rate =
        launch.kind == LaunchKind::kFeed ? rates.h2d_bytes : rates.d2h_bytes;
    return rates.launch_us + CopiedBytes(launch) / rate * 1e6;
  }
  const Op& op = program.op(launch.op);
  const OpSchema& schema = registry.Get(op.type);
  if (schema.collective) {
    const auto bytes = static_cast<double>(
        planning::RingBytes(launch, op.type, program.world_size));
    return rates.launch_us + bytes / rates.collective_bytes * 1e6;
  }
  if (schema.where == OpSchema::Where::kCopy) {
    const bool down = std::any_of(
        launch.operands.begin(), launch.operands.end(),
        [&](const Operand& operand) {
          return operand.read &&
                 plan.storages[operand.storage].place == Place::kDevice;
        });
    const double rate = down ? rates.d2h_bytes : rates.h2d_bytes;
    return rates.launch_us + CopiedBytes(launch) / rate * 1e6;
  }
  OpCost cost;
  if (schema.cost) {
    cost = schema.cost(OpView(program, op));
  } else {
    cost.bytes = OperandBytes(launch);
  }
  if (launch.stream == StreamKind::kHost) {
    return cost.bytes / rates.host_adam_bytes * 1e6;
  }
  return rates.launch_us + std::max(cost.flops / FlopRate(program, op, rates),
                                    cost.bytes / rates.memory_bytes) *
                               1e6;
}

// Launches on serial streams; times are in microseconds.
class Replay {
 public:
  Replay(const GraphPlan& graph, std::vector<double> durations)
      : graph_(graph),
        durations_(std::move(durations)),
        finished_(graph.launches.size(), 0) {}

  void Step() {
    busy_ = {};
    const int micros = std::min(graph_.accumulate_steps, kMostMicros);
    for (int micro = 0; micro < micros; ++micro) Micro(micro);
    Extend(graph_.accumulate_steps - micros);
    for (size_t i = graph_.micro_count; i < graph_.launches.size(); ++i) {
      Issue(i);
    }
  }

  double end() const { return end_; }
  const std::array<double, kStreamCount>& busy_of_step() const { return busy_; }

 private:
  // After so many micro-steps each takes as long as the one before.
  static constexpr int kMostMicros = 64;

  void Issue(size_t i) {
    const Launch& launch = graph_.launches[i];
    const auto stream = static_cast<size_t>(launch.stream);
    double start = free_at_[stream];
    for (LaunchIndex wait : launch.waits) {
      start = std::max(start, finished_[wait]);
    }
    free_at_[stream] = finished_[i] = start + durations_[i];
    busy_[stream] += durations_[i];
    end_ = std::max(end_, finished_[i]);
  }

  void Micro(int micro) {
    const double before = end_;
    for (int32_t i = 0; i < graph_.micro_count; ++i) {
      if (micro == 0 || !graph_.launches[i].first_micro_only) Issue(i);
    }
    last_micro_ = end_ - before;
  }

  // As many micro-steps more, each like the last one.
  void Extend(int micros) {
    const double time = micros * last_micro_;
    std::array<bool, kStreamCount> moved{};
    for (int32_t i = 0; i < graph_.micro_count; ++i) {
      const Launch& launch = graph_.launches[i];
      if (launch.first_micro_only) continue;
      finished_[i] += time;
      busy_[static_cast<size_t>(launch.stream)] += micros * durations_[i];
      moved[static_cast<size_t>(launch.stream)] = true;
    }
    for (size_t s = 0; s < free_at_.size(); ++s) free_at_[s] += moved[s] * time;
    end_ += time;
  }

  const GraphPlan& graph_;
  const std::vector<double> durations_;
  std::vector<double> finished_;  // by launch, its latest instance
  std::array<double, kStreamCount> free_at_{};
  std::array<double, kStreamCount> busy_{};
  double end_ = 0, last_micro_ = 0;
};

}  // namespace

StepEstimate SimulateStep(const Plan& plan, const Program& program,
                          const Rates& rates, const OpRegistry& registry) {
  // By then the update of one step overlaps the forward of the next as it
  // always will.
  constexpr int kSteps = 4;
  const GraphPlan& graph = plan.graphs[0];
  StepEstimate estimate;
  std::vector<double> durations;
  for (const Launch& launch : graph.launches) {
    durations.push_back(Duration(plan, program, launch, rates, registry));
    if (launch.kind == LaunchKind::kOp &&
        launch.stream == StreamKind::kCompute &&
        launch.section == Section::kMicro &&
        program.op(launch.op).role == Role::kBackward) {
      estimate.backward_ms += durations.back() / 1e3;
    }
  }
  Replay replay(graph, std::move(durations));
  double previous_end = 0;
  for (int step = 0; step < kSteps; ++step) {
    previous_end = replay.end();
    replay.Step();
  }
  estimate.step_ms = (replay.end() - previous_end) / 1e3;
  estimate.busy_ms = replay.busy_of_step();
  for (double& busy : estimate.busy_ms) busy /= 1e3;
  return estimate;
}

}  // namespace plo
