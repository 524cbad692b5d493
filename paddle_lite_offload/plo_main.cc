// The `plo` executable.
#include <gflags/gflags.h>
#include <glog/logging.h>

#include <cstdio>
#include <exception>

#include "framework/ir/error.h"
#include "paddle_lite_offload/cli.h"
#include "paddle_lite_offload/cli_flags.h"

int main(int argc, char** argv) {
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
