// The canonical text form of a program: dumps, goldens, `plo opt`, Python.
#ifndef PLO_FRAMEWORK_IR_PROGRAM_TEXT_H_
#define PLO_FRAMEWORK_IR_PROGRAM_TEXT_H_

#include <string>
#include <string_view>

#include "framework/ir/program.h"

namespace plo {

// Lossless: ParseProgram(PrintProgram(p)) prints the same. Fields at their
// defaults are left out. docs/ir_format.md has the grammar.
std::string PrintProgram(const Program& program);

// An attribute's value as the text form has it.
std::string AttrText(const Attr& value);

// Throws InvalidArgument with line and column.
Program ParseProgram(std::string_view text);

// Graphviz of the ops of micro and update, one cluster per region.
std::string ToGraphviz(const Program& program);

// framework/program.proto, binary or protobuf text form. ParseProto throws
// DataLoss for a corrupt file and FailedPrecondition for a newer version.
std::string SerializeProto(const Program& program, bool text = false);
Program ParseProto(std::string_view bytes);

// Reads any of these forms, telling them apart by content. Throws as they do,
// with `name`, say a path, in front.
Program ReadProgram(std::string_view bytes, const std::string& name);
// Errors of the file: see framework/ir/file_io.h.
Program LoadProgram(const std::string& path);
void SaveProgram(const Program& program, const std::string& path);

}  // namespace plo

#endif  // PLO_FRAMEWORK_IR_PROGRAM_TEXT_H_
