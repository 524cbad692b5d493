#include "framework/plan/simulator.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
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
  return rates.launch_us + std::max(cost.flops / rates.matmul_flops,
                                    cost.bytes / rates.memory_bytes) *
                               1e6;
}

}  // namespace

Rates LoadRates(const std::string& path) {
  std::ifstream file(path);
  PLO_ENFORCE(file.is_open(), kNotFound, "cannot open rates file '", path, "'");
  const nlohmann::json json =
      nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  PLO_ENFORCE(json.is_object(), kInvalidArgument, "rates file '", path,
              "' is not a JSON object");
  Rates rates;
  const std::map<std::string, double*> fields = {
      {"matmul_flops", &rates.matmul_flops},
      {"memory_bytes", &rates.memory_bytes},
      {"d2h_bytes", &rates.d2h_bytes},
      {"h2d_bytes", &rates.h2d_bytes},
      {"collective_bytes", &rates.collective_bytes},
      {"host_adam_bytes", &rates.host_adam_bytes},
      {"launch_us", &rates.launch_us}};
  for (const auto& [key, value] : json.items()) {
    if (key == "name") {
      PLO_ENFORCE(value.is_string(), kInvalidArgument, "rates file '", path,
                  "': 'name' is not a string");
      rates.name = value.get<std::string>();
      continue;
    }
    const auto field = fields.find(key);
    PLO_ENFORCE(field != fields.end(), kInvalidArgument, "rates file '", path,
                "': unknown key '", key, "'");
    PLO_ENFORCE(value.is_number() && value.get<double>() > 0, kInvalidArgument,
                "rates file '", path, "': '", key,
                "' must be a positive number, got ", value.dump());
    *field->second = value.get<double>();
  }
  return rates;
}

StepEstimate SimulateStep(const Plan& plan, const Program& program,
                          const Rates& rates, const OpRegistry& registry) {
  // By then the update of one step overlaps the forward of the next as it
  // always will.
  constexpr int kSteps = 4;
  const GraphPlan& graph = plan.graphs[0];
  std::vector<double> duration;
  for (const Launch& launch : graph.launches) {
    duration.push_back(Duration(plan, program, launch, rates, registry));
  }
  StepEstimate estimate;
  std::vector<double> finished(graph.launches.size(), 0);
  std::array<double, kStreamCount> free_at{};
  double step_end = 0, previous_end = 0;
  const auto issue = [&](size_t i, bool last_step) {
    const Launch& launch = graph.launches[i];
    double& stream = free_at[static_cast<size_t>(launch.stream)];
    double start = stream;
    for (LaunchIndex wait : launch.waits) {
      start = std::max(start, finished[wait]);
    }
    stream = finished[i] = start + duration[i];
    step_end = std::max(step_end, stream);
    if (last_step) {
      estimate.busy_ms[static_cast<size_t>(launch.stream)] += duration[i] / 1e3;
    }
  };
  for (int step = 0; step < kSteps; ++step) {
    previous_end = step_end;
    const bool last = step == kSteps - 1;
    for (int micro = 0; micro < graph.accumulate_steps; ++micro) {
      for (int32_t i = 0; i < graph.micro_count; ++i) {
        if (micro > 0 && graph.launches[i].first_micro_only) continue;
        issue(i, last);
      }
    }
    for (size_t i = graph.micro_count; i < graph.launches.size(); ++i) {
      issue(i, last);
    }
  }
  estimate.step_ms = (step_end - previous_end) / 1e3;
  return estimate;
}

}  // namespace plo
