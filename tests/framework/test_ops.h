// A handful of op schemas for tests of the IR, and random programs of them.
#ifndef PLO_TESTS_FRAMEWORK_TEST_OPS_H_
#define PLO_TESTS_FRAMEWORK_TEST_OPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "framework/ir/op_registry.h"
#include "framework/ir/program.h"

namespace plo {

// unary(x) -> out {gain=1.0}, same type
// pair(x, y) -> out, sum(x*) -> out: same type
// update(x, acc) -> acc: alias
// view(x) -> out {shape}: alias
// all_reduce(x) -> out: collective, alias
// host(x) -> out {}: device or host
// copy_d2h, copy_h2d(x) -> out
const OpRegistry& TestOps();

VarId AddVar(Program& program, const std::string& name, Shape shape,
             VarKind kind = VarKind::kTemp, Place place = Place::kDevice);
VarId AddView(Program& program, const std::string& name, Shape shape, VarId of,
              int64_t byte_offset = 0, int64_t rank_stride_bytes = 0);
// Adds unary-like op `type`: x -> out.
Op& AddOp(Program& program, Section section, const std::string& type, VarId in,
          VarId out);

// A program with every field set to something random: names that need quotes,
// odd numbers, all attribute types. It round-trips but does not verify.
Program RandomProgram(uint32_t seed);

}  // namespace plo

#endif  // PLO_TESTS_FRAMEWORK_TEST_OPS_H_
