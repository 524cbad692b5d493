// Runs build/bin/plo as a user would.
#ifndef PLO_TESTS_INTEGRATION_RUN_PLO_H_
#define PLO_TESTS_INTEGRATION_RUN_PLO_H_

#include <sys/types.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace plo {

struct PloResult {
  int exit_code = -1;  // 128 + signal when a signal ended it
  std::string out;
  std::string err;
};

using Environment = std::map<std::string, std::string>;

// A `plo` process started in the background.
class PloProcess {
 public:
  explicit PloProcess(const std::vector<std::string>& args,
                      const Environment& environment = {});
  ~PloProcess();  // kills what still runs
  PloProcess(const PloProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Kill();
  // What it has printed on stderr so far.
  std::string ErrSoFar() const;
  // Waits; a process that runs longer is killed and the exit code is -1.
  PloResult Wait(double timeout_seconds);

 private:
  pid_t pid_ = -1;
  std::string out_path_, err_path_;
};

PloResult RunPlo(const std::vector<std::string>& args,
                 double timeout_seconds = 120,
                 const Environment& environment = {});

// Runs with --json added; throws std::runtime_error with stderr if it fails.
nlohmann::json RunPloJson(std::vector<std::string> args,
                          double timeout_seconds = 240);

// A fresh path under the test's temporary folder.
std::string TempPath(const std::string& stem);

// A TCP port that was free a moment ago.
int FreePort();

}  // namespace plo

#endif  // PLO_TESTS_INTEGRATION_RUN_PLO_H_
