#include <algorithm>
#include <sstream>

#include "framework/plan/plan.h"

namespace plo {
namespace {

void PrintPeak(std::ostream& out, Place place, const PlacePeak& peak) {
  out << Name(place) << ": arena " << peak.arena_bytes << ", live peak "
      << peak.live_peak_bytes << ", fragmentation "
      << peak.fragmentation_bytes();
  for (int c = 0; c < kMemoryCategoryCount; ++c) {
    if (peak.by_category[c] == 0) continue;
    out << ", " << Name(static_cast<MemoryCategory>(c)) << " "
        << peak.by_category[c];
  }
  if (!peak.peak_op.empty()) out << ", at " << peak.peak_op;
  out << "\n";
}

void PrintStorage(std::ostream& out, size_t index, const Storage& storage) {
  out << "  %" << index << " '" << storage.name << "' " << Name(storage.place)
      << " " << Name(storage.category) << " [" << storage.offset << ", "
      << storage.offset + storage.bytes << ")";
  if (storage.persistent) {
    out << " persistent\n";
    return;
  }
  if (storage.graph == kStartupGraph) {
    out << " startup";
  } else if (storage.graph > 0) {
    out << " graph " << storage.graph;
  }
  out << " live";
  for (const LiveRange& range : storage.live) {
    out << " [" << range.begin << ", " << range.end << ")";
  }
  out << "\n";
}

void PrintOperands(std::ostream& out, const Launch& launch, bool write) {
  const char* separator = write ? " -> " : " ";
  for (const Operand& operand : launch.operands) {
    if (operand.write != write) continue;
    out << separator << "%" << operand.storage;
    if (operand.offset != 0 || operand.rank_stride != 0) {
      out << "+" << operand.offset;
      if (operand.rank_stride != 0) out << "+rank*" << operand.rank_stride;
    }
    separator = " ";
  }
}

class LaunchPrinter {
 public:
  // `program` is null where the ops' types are not known.
  LaunchPrinter(std::ostream& out, const Program* program)
      : out_(out), program_(program) {}

  void Print(size_t index, const Launch& launch) {
    out_ << "    " << index << ": " << Name(launch.stream) << " ";
    switch (launch.kind) {
      case LaunchKind::kOp:
        if (program_ != nullptr) out_ << program_->op(launch.op).type;
        out_ << "#" << launch.op;
        break;
      case LaunchKind::kFeed:
        out_ << "feed";
        break;
      case LaunchKind::kFetch:
        out_ << "fetch";
        break;
    }
    if (launch.first_micro_only) out_ << " first_micro_only";
    PrintOperands(out_, launch, /*write=*/false);
    PrintOperands(out_, launch, /*write=*/true);
    if (!launch.waits.empty()) {
      out_ << " after";
      for (LaunchIndex wait : launch.waits) out_ << " " << wait;
    }
    out_ << "\n";
  }

 private:
  std::ostream& out_;
  const Program* program_;
};

}  // namespace

std::string Plan::ToString(const Program& program) const {
  std::ostringstream out;
  PrintPeak(out, Place::kDevice, device);
  PrintPeak(out, Place::kPinned, pinned);
  out << "per step: d2h " << d2h_bytes_per_step << ", h2d "
      << h2d_bytes_per_step << ", collective " << collective_bytes_per_step
      << "\nhost state: " << host_state_bytes << "\nstorages:\n";
  for (size_t i = 0; i < storages.size(); ++i) {
    PrintStorage(out, i, storages[i]);
  }
  for (size_t g = 0; g < graphs.size(); ++g) {
    const GraphPlan& graph = graphs[g];
    LaunchPrinter printer(out, g == 0 ? &program : nullptr);
    out << "graph " << g << " '" << graph.name << "':\n";
    if (!graph.startup.empty()) out << "  startup:\n";
    for (size_t i = 0; i < graph.startup.size(); ++i) {
      printer.Print(i, graph.startup[i]);
    }
    out << "  micro, " << graph.accumulate_steps << " per step:\n";
    for (size_t i = 0; i < graph.launches.size(); ++i) {
      if (static_cast<int32_t>(i) == graph.micro_count) out << "  update:\n";
      printer.Print(i, graph.launches[i]);
    }
  }
  return out.str();
}

}  // namespace plo
