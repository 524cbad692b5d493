#include "paddle_lite_offload/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>

#include "framework/ir/error.h"
#include "framework/runtime/socket_utils.h"

namespace plo {
namespace {

constexpr int kPollMs = 50;
constexpr double kKillAfterTermSeconds = 3;
// Of a quiet rank's stdout, in case it fails.
constexpr size_t kKeptStdoutBytes = 64 << 10;
// Descriptor of a worker to write the reason of its failure to.
constexpr const char* kFailureFd = "PLO_FAILURE_FD";
// Exit status of a child that could not become its worker.
constexpr int kCouldNotRun = 127;
// So much fits into an empty pipe.
constexpr size_t kMaxFailureBytes = 32 << 10;

std::atomic<int> g_signal{0};
std::atomic<int> g_signal_count{0};

void OnSignal(int signal) {
  g_signal = signal;
  ++g_signal_count;
}

// SIGINT and SIGTERM are ours while in scope.
class SignalScope {
 public:
  SignalScope() {
    g_signal = 0;
    g_signal_count = 0;
    struct sigaction action {};
    action.sa_handler = OnSignal;
    sigaction(SIGINT, &action, &old_int_);
    sigaction(SIGTERM, &action, &old_term_);
  }
  ~SignalScope() {
    sigaction(SIGINT, &old_int_, nullptr);
    sigaction(SIGTERM, &old_term_, nullptr);
  }
  // For a child, between fork and exec.
  void Restore() const {
    sigaction(SIGINT, &old_int_, nullptr);
    sigaction(SIGTERM, &old_term_, nullptr);
  }

 private:
  struct sigaction old_int_;
  struct sigaction old_term_;
};

int AvailableCores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores));
}

std::vector<std::string> WorkerEnvironment(int rank, int nproc, int port,
                                           int failure_fd) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables[std::string(text.substr(0, equals))] = text.substr(equals + 1);
  }
  variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] =
      std::to_string(nproc);
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(port);
  variables[kFailureFd] = std::to_string(failure_fd);
  // A launcher around us is no business of the workers.
  variables.erase("PLO_MASTER_PORT");
  variables.erase("TORCHELASTIC_USE_AGENT_STORE");
  variables.erase("GLOO_SOCKET_IFNAME");
  variables.emplace("OMP_NUM_THREADS",
                    std::to_string(std::max(1, AvailableCores() / nproc)));
  std::vector<std::string> environment;
  for (const auto& [name, value] : variables) {
    environment.push_back(name + "=" + value);
  }
  return environment;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

void WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
}

void WriteStderr(std::string_view text) { WriteAll(STDERR_FILENO, text); }

// What a worker wrote to one of its outputs.
class Output {
 public:
  Fd fd;  // invalid at the end of the stream

  // Reads what is there.
  std::string Read() {
    std::string text;
    char buffer[4096];
    while (fd.valid()) {
      const ssize_t got = read(fd.get(), buffer, sizeof(buffer));
      if (got > 0) {
        text.append(buffer, static_cast<size_t>(got));
        continue;
      }
      if (got < 0 && errno == EINTR) continue;
      if (got == 0 || errno != EAGAIN) fd = Fd();
      break;
    }
    return text;
  }
};

struct Worker {
  int rank = 0;
  pid_t pid = -1;  // -1 when it has ended
  int status = 0;  // as in LaunchResult
  Output out;
  Output err;
  Output failure;
  std::string kept_stdout;
  std::string err_line;  // begun, not yet ended

  std::string Prefix() const { return StrCat("[rank ", rank, "] "); }

  // Writes complete lines with the prefix.
  void ShowLines(std::string_view text, bool all) {
    err_line += text;
    std::string shown;
    size_t begin = 0;
    for (size_t end; (end = err_line.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      shown += Prefix() + err_line.substr(begin, end + 1 - begin);
    }
    err_line.erase(0, begin);
    if (all && !err_line.empty()) {
      shown += Prefix() + err_line + "\n";
      err_line.clear();
    }
    WriteStderr(shown);
  }

  void ReadOutputs() {
    ShowLines(err.Read(), !err.fd.valid());
    kept_stdout += out.Read();
    if (kept_stdout.size() > kKeptStdoutBytes) {
      kept_stdout.erase(0, kept_stdout.size() - kKeptStdoutBytes);
    }
  }
};

struct Pipe {
  Fd read_end;
  Fd write_end;
};

Pipe MakePipe() {
  int ends[2];
  PLO_ENFORCE(pipe2(ends, O_CLOEXEC) == 0, kUnavailable,
              "pipe: ", std::strerror(errno));
  Pipe made{Fd(ends[0]), Fd(ends[1])};
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return made;
}

class Launch {
 public:
  Launch(int nproc, const std::vector<std::string>& argv,
         const LaunchOptions& options)
      : argv_(argv), options_(options) {
    const int port = PortOf(ListenOn("127.0.0.1", 0));
    try {
      for (int rank = 0; rank < nproc; ++rank) Start(rank, nproc, port);
    } catch (...) {
      SignalAll(SIGKILL);
      for (Worker& worker : workers_) waitpid(worker.pid, nullptr, 0);
      throw;
    }
  }

  LaunchResult Run() {
    while (true) {
      const bool running = Poll();
      PassOnSignals();
      if (!running) break;
      EndWithTheFailed();
    }
    for (const Worker& worker : workers_) {
      result_.status = std::max(result_.status, worker.status);
    }
    // Workers that end in good order on a signal do not make it a success.
    result_.signal = g_signal;
    if (result_.signal != 0) result_.status = 128 + result_.signal;
    return result_;
  }

 private:
  void Start(int rank, int nproc, int port) {
    std::vector<std::string> argv = argv_;
    Pipe failure = MakePipe();
    const int failure_fd = failure.write_end.get();
    std::vector<std::string> environment =
        WorkerEnvironment(rank, nproc, port, failure_fd);
    const std::vector<char*> argv_pointers = Pointers(argv);
    const std::vector<char*> environment_pointers = Pointers(environment);
    Pipe out;
    Pipe err;
    if (rank > 0 || !options_.show_stdout) out = MakePipe();
    if (rank > 0) err = MakePipe();
    const pid_t parent = getpid();
    const pid_t pid = fork();
    PLO_ENFORCE(pid >= 0, kUnavailable, "cannot start rank ", rank, " of ",
                nproc, ": ", std::strerror(errno));
    if (pid == 0) {
      // Only async-signal-safe calls from here on.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(kCouldNotRun);
      signals_.Restore();
      fcntl(failure_fd, F_SETFD, 0);
      if (out.write_end.valid()) dup2(out.write_end.get(), STDOUT_FILENO);
      if (rank > 0) {
        dup2(err.write_end.get(), STDERR_FILENO);
        const int null = open("/dev/null", O_RDONLY);
        if (null >= 0) dup2(null, STDIN_FILENO);
      }
      execvpe(argv_pointers[0], argv_pointers.data(),
              environment_pointers.data());
      _exit(kCouldNotRun);
    }
    Worker& worker = workers_.emplace_back();
    worker.rank = rank;
    worker.pid = pid;
    worker.out.fd = std::move(out.read_end);
    worker.err.fd = std::move(err.read_end);
    worker.failure.fd = std::move(failure.read_end);
  }

  // Waits for output or an end, a short time only; false when all have ended.
  bool Poll() {
    std::vector<pollfd> entries;
    for (const Worker& worker : workers_) {
      for (const Output* output : {&worker.out, &worker.err}) {
        if (output->fd.valid()) {
          entries.push_back({output->fd.get(), POLLIN, 0});
        }
      }
    }
    poll(entries.data(), entries.size(), kPollMs);
    bool running = false;
    for (Worker& worker : workers_) {
      if (worker.pid < 0) continue;
      worker.ReadOutputs();
      int status = 0;
      if (waitpid(worker.pid, &status, WNOHANG) == worker.pid) {
        Ended(worker, status);
      } else {
        running = true;
      }
    }
    return running;
  }

  void Ended(Worker& worker, int status) {
    worker.pid = -1;
    worker.ReadOutputs();
    worker.ShowLines("", /*all=*/true);
    // A grandchild may hold the pipes; what it writes is not ours to wait for.
    worker.out.fd = Fd();
    worker.err.fd = Fd();
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    const bool could_not_run =
        WIFEXITED(status) && WEXITSTATUS(status) == kCouldNotRun;
    worker.status =
        WIFSIGNALED(status) || could_not_run ? 1 : WEXITSTATUS(status);
    if (!worker.kept_stdout.empty()) {
      worker.ShowLines(worker.kept_stdout, /*all=*/true);
    }
    std::string how = StrCat("rank ", worker.rank);
    if (WIFSIGNALED(status)) {
      how += StrCat(" was ended by signal ", WTERMSIG(status), " (",
                    strsignal(WTERMSIG(status)), ")");
    } else if (could_not_run) {
      how += " could not run " + argv_[0];
    } else {
      how += StrCat(" ended with status ", worker.status);
    }
    WriteStderr(how + "\n");
    const std::string told = worker.failure.Read();
    worker.failure.fd = Fd();
    if (result_.failure.empty()) result_.failure = told.empty() ? how : told;
    StartGrace();
  }

  void PassOnSignals() {
    const int count = g_signal_count;
    if (count == signals_passed_) return;
    signals_passed_ = count;
    // The impatient press Ctrl-C twice.
    SignalAll(count > 1 ? SIGKILL : g_signal.load());
    StartGrace();
  }

  // Of the workers that still run.
  void StartGrace() {
    if (failed_) return;
    failed_ = true;
    deadline_ = DeadlineIn(options_.grace_seconds);
  }

  // Once one has failed: the others get their grace, SIGTERM, SIGKILL.
  void EndWithTheFailed() {
    if (!failed_ || std::chrono::steady_clock::now() < deadline_) return;
    SignalAll(terminated_ ? SIGKILL : SIGTERM);
    terminated_ = true;
    deadline_ = DeadlineIn(kKillAfterTermSeconds);
  }

  void SignalAll(int signal) const {
    for (const Worker& worker : workers_) {
      if (worker.pid > 0) kill(worker.pid, signal);
    }
  }

  const std::vector<std::string> argv_;
  const LaunchOptions options_;
  const SignalScope signals_;
  std::vector<Worker> workers_;
  LaunchResult result_;
  int signals_passed_ = 0;
  bool failed_ = false;
  bool terminated_ = false;
  Deadline deadline_;  // once failed_
};

}  // namespace

LaunchResult RunLocalWorkers(int nproc, const std::vector<std::string>& argv,
                             const LaunchOptions& options) {
  PLO_ENFORCE(nproc >= 1, kInvalidArgument, "nproc is ", nproc,
              ", expected at least 1");
  PLO_ENFORCE(!argv.empty(), kInvalidArgument, "no command to run");
  return Launch(nproc, argv, options).Run();
}

void ReportFailure(const std::string& reason) {
  const char* text = std::getenv(kFailureFd);
  const int fd = text != nullptr ? std::atoi(text) : -1;
  // Only what the launcher has opened: a pipe.
  struct stat info {};
  if (fd <= STDERR_FILENO || fstat(fd, &info) != 0 || !S_ISFIFO(info.st_mode)) {
    return;
  }
  WriteAll(fd, std::string_view(reason).substr(0, kMaxFailureBytes));
}

}  // namespace plo
