// Models after some passes, and what tests ask of them.
#ifndef PLO_TESTS_PASSES_PASS_TEST_UTIL_H_
#define PLO_TESTS_PASSES_PASS_TEST_UTIL_H_

#include <map>
#include <string>
#include <vector>

#include "framework/ir/program.h"
#include "paddle_lite_offload/models.h"

namespace plo {

// Runs a pipeline on the program; returns for each entry whether it changed it.
std::vector<bool> Apply(Program& program, const std::string& pipeline);
// BuildGpt and BuildMlp, with all ops registered.
Program SmallGpt(GptConfig config = {.layers = 3,
                                     .hidden = 36,
                                     .heads = 3,
                                     .seq_len = 11,
                                     .vocab_size = 37,
                                     .micro_batch = 2});

Program SmallMlp(const MlpConfig& config = {});

// Ops of a type in micro with a role.
int CountOps(const Program& program, const std::string& type, Role role);

// Bytes of the temp storages that forward ops write and backward ops read, by
// the top-level region of the storage.
std::map<std::string, int64_t> KeptBytes(const Program& program);

}  // namespace plo

#endif  // PLO_TESTS_PASSES_PASS_TEST_UTIL_H_
