// The invariants every pass must leave intact; see Verify().
#ifndef PLO_FRAMEWORK_IR_VERIFIER_H_
#define PLO_FRAMEWORK_IR_VERIFIER_H_

#include <cstdint>

#include "framework/ir/op_registry.h"
#include "framework/ir/program.h"

namespace plo {

// Throws InvalidArgument (naming op, vars, shapes) unless:
//  1. every op matches its schema (slots, attributes) and shape rule;
//  2. every temp is written before it is read (within a section, or micro
//  before
//     update), and every view lies within its storage for every rank;
//  3. a temp has one writer per byte range, or later writers also read it;
//  4. operands are where the op's kernel runs (OpSchema::where), the sources
//  and
//     targets of copy_d2h / copy_h2d are in the places their names say;
//  5. every copy_h2d reads bytes that an earlier copy_d2h or host op wrote;
//  6. control edges name existing ops of a running section and no op waits for
//     itself;
//  7. ids in relations, views and slots exist; aliases declared by the schema
//     hold.
void Verify(const Program& program,
            const OpRegistry& registry = OpRegistry::Global());

// Hash of the sequence of collectives with their operand sizes, dtypes and
// attributes: equal on all ranks or the run would hang. Compared at start.
uint64_t CollectiveHash(const Program& program,
                        const OpRegistry& registry = OpRegistry::Global());

// 64-bit hash of the canonical text (program_text.h).
uint64_t ProgramHash(const Program& program);

}  // namespace plo

#endif  // PLO_FRAMEWORK_IR_VERIFIER_H_
