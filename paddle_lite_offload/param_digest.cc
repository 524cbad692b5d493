#include "paddle_lite_offload/param_digest.h"

#include <algorithm>
#include <vector>

#include "paddle_lite_offload/hasher.h"

namespace plo {

uint64_t ParamDigest(Executor& executor) {
  const Program& program = executor.program();
  std::vector<std::string> names;
  for (VarId id : program.Params()) names.push_back(program.var(id).name);
  std::sort(names.begin(), names.end());
  Hasher hasher;
  for (const std::string& name : names) {
    const HostTensor tensor = executor.ReadVar(name);
    hasher.Add(name);
    hasher.Add(DTypeName(tensor.dtype));
    hasher.Add(tensor.shape.ToString());
    hasher.Add(tensor.data.data(), tensor.data.size());
  }
  return hasher.digest();
}

}  // namespace plo
