// Runs the plo executable through the shell.
#ifndef PLO_TESTS_PADDLE_LITE_OFFLOAD_SHELL_PLO_H_
#define PLO_TESTS_PADDLE_LITE_OFFLOAD_SHELL_PLO_H_

#include <string>

namespace plo {

struct CliResult {
  int status = -1;  // of the exit; -1 where a signal ended it
  std::string output;
};

// `environment` stands in front of the command, `redirection` behind it.
CliResult Plo(const std::string& args, const std::string& environment = "",
              const std::string& redirection = "2>&1");

// A path in a folder of the current test's own.
std::string Scratch(const std::string& file);

}  // namespace plo

#endif  // PLO_TESTS_PADDLE_LITE_OFFLOAD_SHELL_PLO_H_
