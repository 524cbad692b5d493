// The local launcher behind --nproc: one worker process per rank on this host.
#ifndef PLO_PADDLE_LITE_OFFLOAD_LAUNCH_H_
#define PLO_PADDLE_LITE_OFFLOAD_LAUNCH_H_

#include <string>
#include <vector>

namespace plo {

struct LaunchOptions {
  // After one worker fails the others have this long to end by themselves (they
  // notice within seconds); then they get SIGTERM and at last SIGKILL.
  double grace_seconds = 15;
  // False treats the stdout of rank 0 like that of the others.
  bool show_stdout = true;
};

struct LaunchResult {
  // 0 when all workers ended well; 1 when one was ended by a signal or could
  // not run; else the worst exit status. 128 + signal after SIGINT or SIGTERM
  // to the caller.
  int status = 0;
  // Why the first worker failed: what it told ReportFailure(), else how it
  // ended.
  std::string failure;
  // SIGINT or SIGTERM when the caller got one, else 0.
  int signal = 0;
};

// Runs `argv` (argv[0] is looked up in PATH; "/proc/self/exe" is this program)
// as ranks 0 to nproc-1 with torchrun's variables set, a free MASTER_PORT on
// 127.0.0.1 and, if the caller has not set it, OMP_NUM_THREADS to the rank's
// share of the cores. Rank 0 has the caller's stdin, stdout and stderr. The
// stderr lines of the others appear with "[rank N] " before them; their stdout
// does so only if they fail.
//
// SIGINT and SIGTERM are passed on; workers never outlive the caller. One call
// at a time per process. Throws InvalidArgument on a bad nproc or empty argv,
// Unavailable when no process can be started.
LaunchResult RunLocalWorkers(int nproc, const std::vector<std::string>& argv,
                             const LaunchOptions& options = {});

// Tells the launcher why this worker fails; nothing without a launcher.
void ReportFailure(const std::string& reason);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_LAUNCH_H_
