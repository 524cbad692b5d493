#include "tests/integration/run_plo.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace plo {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string PloPath() {
  const char* dir = std::getenv("PLO_BINARY_DIR");
  if (dir == nullptr) throw std::runtime_error("PLO_BINARY_DIR is not set");
  return std::string(dir) + "/bin/plo";
}

}  // namespace

std::string TempPath(const std::string& stem) {
  static int count = 0;
  const char* dir = std::getenv("TMPDIR");
  return std::string(dir != nullptr ? dir : "/tmp") + "/plo_test_" +
         std::to_string(getpid()) + "_" + std::to_string(count++) + "_" + stem;
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (fd < 0 ||
      bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw std::runtime_error("no free port");
  }
  close(fd);
  return ntohs(address.sin_port);
}

PloProcess::PloProcess(const std::vector<std::string>& args,
                       const Environment& environment)
    : out_path_(TempPath("out")), err_path_(TempPath("err")) {
  const std::string path = PloPath();
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& arg : args) {
    argv.push_back(const_cast<char*>(arg.c_str()));
  }
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ > 0) return;
  setpgid(0, 0);
  const int in = open("/dev/null", O_RDONLY);
  const int out = open(out_path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  const int err = open(err_path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  dup2(in, 0);
  dup2(out, 1);
  dup2(err, 2);
  for (const auto& [name, value] : environment) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  execv(argv[0], argv.data());
  _exit(127);
}

PloProcess::~PloProcess() {
  if (pid_ > 0) Wait(0);
  unlink(out_path_.c_str());
  unlink(err_path_.c_str());
}

void PloProcess::Kill() {
  if (pid_ > 0) kill(pid_, SIGKILL);
}

std::string PloProcess::ErrSoFar() const { return ReadFile(err_path_); }

PloResult PloProcess::Wait(double timeout_seconds) {
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration<double>(timeout_seconds);
  PloResult result;
  int status = 0;
  pid_t done = 0;
  while ((done = waitpid(pid_, &status, WNOHANG)) == 0 &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (done == 0) {
    kill(-pid_, SIGKILL);
    kill(pid_, SIGKILL);
    waitpid(pid_, &status, 0);
  } else {
    result.exit_code =
        WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  pid_ = -1;
  result.out = ReadFile(out_path_);
  result.err = ReadFile(err_path_);
  return result;
}

PloResult RunPlo(const std::vector<std::string>& args, double timeout_seconds,
                 const Environment& environment) {
  return PloProcess(args, environment).Wait(timeout_seconds);
}

nlohmann::json RunPloJson(std::vector<std::string> args,
                          double timeout_seconds) {
  const std::string path = TempPath("json");
  args.push_back("--json=" + path);
  const PloResult result = RunPlo(args, timeout_seconds);
  if (result.exit_code != 0) {
    throw std::runtime_error("plo ended with " +
                             std::to_string(result.exit_code) + ": " +
                             result.err);
  }
  nlohmann::json json = nlohmann::json::parse(ReadFile(path));
  unlink(path.c_str());
  return json;
}

}  // namespace plo
