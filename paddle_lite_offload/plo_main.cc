// The `plo` executable.
#include <fcntl.h>
#include <gflags/gflags.h>
#include <glog/logging.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <system_error>

#include "framework/ir/error.h"
#include "paddle_lite_offload/cli.h"
#include "paddle_lite_offload/cli_flags.h"
#include "paddle_lite_offload/launch.h"

namespace {

// Else the first file that is opened takes the place of a closed stdout and
// receives what is printed. Opened the wrong way round, so that use fails.
void OccupyStandardStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) != -1) continue;
    // The lowest free descriptor is this one.
    (void)open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// OpenMP threads that wait spin for a millisecond by default, which stops the
// other streams and ranks of a busy host. libgomp reads its environment when it
// is loaded, so that only a fresh image obeys.
void RestartWithShortSpins(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  setenv("GOMP_SPINCOUNT", "1000", /*overwrite=*/0);
  execv("/proc/self/exe", argv);
  // Where that fails we run as we are: slower, no worse.
}

// Throws unless all that was printed has arrived.
void FlushStdout() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  PLO_THROW(kUnavailable, "cannot write the standard output",
            errno != 0 ? ": " : "",
            errno != 0 ? std::generic_category().message(errno) : "");
}

int Fail(const std::string& message, int status) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  plo::ReportFailure(message);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  OccupyStandardStreams();
  RestartWithShortSpins(argv);
  // A file above the limit of its size is an error, not the end.
  signal(SIGXFSZ, SIG_IGN);
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  try {
    const int status = plo::CliMain(plo::CliArgs(argv + 1, argv + argc));
    FlushStdout();
    return status;
  } catch (const plo::UsageError& error) {
    return Fail(error.what(), 2);
  } catch (const std::bad_alloc&) {
    return Fail("OutOfMemory: no host memory left", 1);
  } catch (const std::exception& error) {
    return Fail(error.what(), 1);
  }
}
