#include <map>

#include "framework/ir/program_text.h"

namespace plo {
namespace {

std::string Escape(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string_view StreamColor(StreamKind stream) {
  switch (stream) {
    case StreamKind::kCompute:
      return "white";
    case StreamKind::kComm:
      return "lightblue";
    case StreamKind::kD2H:
      return "khaki";
    case StreamKind::kH2D:
      return "palegreen";
    case StreamKind::kHost:
      return "lightpink";
  }
  return "white";
}

// The last writer of a storage has an edge to each reader of it up to the next
// writer; `after` edges are dashed.
void AddEdges(const Program& program, const Op& op,
              std::map<VarId, OpId>& last_writer, std::string& out) {
  for (const Slot& slot : op.inputs) {
    for (VarId id : slot.vars) {
      const auto writer = last_writer.find(program.StorageOf(id));
      if (writer == last_writer.end()) continue;
      const Var& var = program.var(id);
      out += StrCat("  op", writer->second, " -> op", op.id, " [label=\"",
                    Escape(var.name), "\\n", var.dtype, var.shape, "\"];\n");
    }
  }
  for (OpId before : op.after) {
    out += StrCat("  op", before, " -> op", op.id,
                  " [style=dashed, color=gray];\n");
  }
  for (const Slot& slot : op.outputs) {
    for (VarId id : slot.vars) last_writer[program.StorageOf(id)] = op.id;
  }
}

}  // namespace

std::string ToGraphviz(const Program& program) {
  std::map<std::string, std::string> clusters;
  std::string edges;
  std::map<VarId, OpId> last_writer;
  for (Section section : {Section::kMicro, Section::kUpdate}) {
    for (const auto& op : program.ops(section)) {
      clusters[op->region] +=
          StrCat("    op", op->id, " [label=\"#", op->id, " ", Escape(op->type),
                 "\", fillcolor=", StreamColor(op->stream),
                 op->role == Role::kForward ? "" : ", shape=ellipse", "];\n");
      AddEdges(program, *op, last_writer, edges);
    }
  }
  std::string out = StrCat("digraph \"", Escape(program.name),
                           "\" {\n  node [shape=box, style=filled];\n");
  int index = 0;
  for (const auto& [region, nodes] : clusters) {
    if (region.empty()) {
      out += nodes;
      continue;
    }
    out += StrCat("  subgraph cluster", index++, " {\n    label=\"",
                  Escape(region), "\";\n", nodes, "  }\n");
  }
  return out + edges + "}\n";
}

}  // namespace plo
