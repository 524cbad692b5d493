// The `plo` executable.
#include <gflags/gflags.h>
#include <glog/logging.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "framework/ir/error.h"
#include "paddle_lite_offload/cli.h"
#include "paddle_lite_offload/cli_flags.h"

namespace {

// OpenMP threads that wait spin for a millisecond by default, which stops the
// other streams and ranks of a busy host. libgomp reads its environment when it
// is loaded, so that only a fresh image obeys.
void RestartWithShortSpins(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  setenv("GOMP_SPINCOUNT", "1000", /*overwrite=*/0);
  execv("/proc/self/exe", argv);
  // Where that fails we run as we are: slower, no worse.
}

}  // namespace

int main(int argc, char** argv) {
  RestartWithShortSpins(argv);
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  try {
    return plo::CliMain(plo::CliArgs(argv + 1, argv + argc));
  } catch (const plo::UsageError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "error: OutOfMemory: no host memory left\n");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
