// Files as a whole. All errors name the path and carry a code of their own:
// NotFound for what does not exist, InvalidArgument for what is no file,
// FailedPrecondition without permission, Unavailable when the disk is full or
// fails.
#ifndef PLO_FRAMEWORK_IR_FILE_IO_H_
#define PLO_FRAMEWORK_IR_FILE_IO_H_

#include <string>
#include <string_view>

#include "framework/ir/error.h"

namespace plo {

// The bytes of a file, or of a pipe or device until its end.
std::string ReadFile(const std::string& path);

// All of the standard input.
std::string ReadStdin();

// Puts a whole new file in the place of the old one, which stays as it is on
// error. What is no regular file (a device, a pipe, a symbolic link) is written
// to instead.
void WriteFile(const std::string& path, std::string_view content);

// Throws what WriteFile would, as far as that shows in advance. Changes
// nothing.
void CheckWritable(const std::string& path);

// Makes a folder and those that it lies in, where they do not exist.
void MakeFolder(const std::string& path);

// "cannot read 'x': Is a directory" for an errno.
Error FileError(std::string_view what, const std::string& path, int error);

}  // namespace plo

#endif  // PLO_FRAMEWORK_IR_FILE_IO_H_
