// The few socket calls of the key-value store and the launcher.
#ifndef PLO_FRAMEWORK_RUNTIME_SOCKET_UTILS_H_
#define PLO_FRAMEWORK_RUNTIME_SOCKET_UTILS_H_

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

namespace plo {

// An owned file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

using Deadline = std::chrono::steady_clock::time_point;
Deadline DeadlineIn(double seconds);
// Until then, for poll(): at least 0, at most an hour.
int MillisecondsLeft(Deadline deadline);

// A non-blocking listening socket. Throws Unavailable when the port is in use;
// see KvServer about `address`.
Fd ListenOn(const std::string& address, int port);
int PortOf(const Fd& socket);
// Numeric address of this side of a connected socket.
std::string LocalAddressOf(const Fd& socket);

// A connected non-blocking socket, or an invalid one with the reason in
// `error`.
Fd TryConnect(const std::string& address, int port, Deadline deadline,
              std::string* error);

// All bytes, or false on error, end of stream or deadline, with the reason in
// `error`. No SIGPIPE.
bool SendAll(const Fd& socket, const void* data, size_t bytes,
             Deadline deadline, std::string* error);
bool RecvAll(const Fd& socket, void* data, size_t bytes, Deadline deadline,
             std::string* error);

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_SOCKET_UTILS_H_
