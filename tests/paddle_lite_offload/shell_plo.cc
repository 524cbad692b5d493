#include "tests/paddle_lite_offload/shell_plo.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace plo {

CliResult Plo(const std::string& args, const std::string& environment,
              const std::string& redirection) {
  const char* build = std::getenv("PLO_BINARY_DIR");
  const std::string command = environment + " " +
                              std::string(build ? build : "build") +
                              "/bin/plo " + args + " " + redirection;
  CliResult result;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    result.output.append(buffer, n);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.status = WEXITSTATUS(status);
  return result;
}

std::string Scratch(const std::string& file) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string folder = ::testing::TempDir() + "/plo_cli_" + test->name();
  std::filesystem::create_directories(folder);
  return folder + "/" + file;
}

}  // namespace plo
