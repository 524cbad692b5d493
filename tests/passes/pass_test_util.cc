#include "tests/passes/pass_test_util.h"

#include <set>

#include "operators/register_ops.h"
#include "passes/pass.h"
#include "passes/pipeline.h"

namespace plo {

std::vector<bool> Apply(Program& program, const std::string& pipeline) {
  RegisterBuiltinPasses();
  PassManager manager = PassManager::Parse(pipeline);
  manager.Run(program);
  std::vector<bool> changed;
  for (const PassRecord& record : manager.records()) {
    changed.push_back(record.changed);
  }
  return changed;
}

Program SmallGpt(GptConfig config) {
  RegisterBuiltinOps();
  return BuildGpt(config);
}

Program SmallMlp(const MlpConfig& config) {
  RegisterBuiltinOps();
  return BuildMlp(config);
}

int CountOps(const Program& program, const std::string& type, Role role) {
  int count = 0;
  for (const auto& op : program.ops(Section::kMicro)) {
    count += op->type == type && op->role == role;
  }
  return count;
}

std::map<std::string, int64_t> KeptBytes(const Program& program) {
  std::set<VarId> written, kept;
  for (const auto& op : program.ops(Section::kMicro)) {
    const bool forward = op->role == Role::kForward;
    for (const Slot& slot : forward ? op->outputs : op->inputs) {
      for (VarId id : slot.vars) {
        const VarId storage = program.StorageOf(id);
        if (program.var(storage).kind != VarKind::kTemp) continue;
        if (forward) {
          written.insert(storage);
        } else if (written.count(storage) > 0) {
          kept.insert(storage);
        }
      }
    }
  }
  std::map<std::string, int64_t> bytes;
  for (VarId id : kept) {
    const Var& var = program.var(id);
    bytes[var.region.substr(0, var.region.find('/'))] += var.bytes();
  }
  return bytes;
}

}  // namespace plo
