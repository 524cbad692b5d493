#include "framework/runtime/socket_utils.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "framework/ir/error.h"

namespace plo {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList Resolve(const std::string& address, int port, std::string* error) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int rc =
      getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (rc != 0) {
    *error = StrCat("cannot resolve \"", address, "\": ", gai_strerror(rc));
    list = nullptr;
  }
  return AddressList(list, &freeaddrinfo);
}

Fd NewSocket(int family) {
  return Fd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// Invalid with errno set when the address cannot be bound.
Fd Listen(const sockaddr* address, socklen_t length) {
  Fd fd = NewSocket(address->sa_family);
  if (!fd.valid()) return fd;
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd.get(), address, length) != 0 || listen(fd.get(), 1024) != 0) {
    const int error = errno;
    fd = Fd();
    errno = error;
  }
  return fd;
}

bool AwaitEvent(const Fd& socket, short events, Deadline deadline,
                std::string* error) {
  pollfd entry{socket.get(), events, 0};
  while (true) {
    const int ready = poll(&entry, 1, MillisecondsLeft(deadline));
    if (ready > 0) return true;
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0 && std::chrono::steady_clock::now() < deadline) continue;
    *error = ready == 0 ? "no answer in time" : std::strerror(errno);
    return false;
  }
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

Deadline DeadlineIn(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(seconds));
}

int MillisecondsLeft(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3'600'000));
}

Fd ListenOn(const std::string& address, int port) {
  std::string error;
  const AddressList list = Resolve(address, port, &error);
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    Fd fd = Listen(a->ai_addr, a->ai_addrlen);
    if (fd.valid()) return fd;
    PLO_ENFORCE(errno != EADDRINUSE, kUnavailable, "port ", port, " on ",
                address, " is in use; set MASTER_PORT to a free one");
    error = std::strerror(errno);
    if (errno != EADDRNOTAVAIL) break;
  }
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<uint16_t>(port));
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  Fd fd = Listen(reinterpret_cast<const sockaddr*>(&any), sizeof(any));
  PLO_ENFORCE(fd.valid() || errno != EADDRINUSE, kUnavailable, "port ", port,
              " is in use; set MASTER_PORT to a free one");
  PLO_ENFORCE(fd.valid(), kUnavailable, "cannot listen on ", address, ":", port,
              ": ", std::strerror(errno));
  return fd;
}

int PortOf(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

std::string LocalAddressOf(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  char text[NI_MAXHOST] = "";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text,
              sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

Fd TryConnect(const std::string& address, int port, Deadline deadline,
              std::string* error) {
  const AddressList list = Resolve(address, port, error);
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    Fd fd = NewSocket(a->ai_family);
    int rc = fd.valid() ? connect(fd.get(), a->ai_addr, a->ai_addrlen) : -1;
    if (rc != 0 && errno == EINPROGRESS) {
      if (!AwaitEvent(fd, POLLOUT, deadline, error)) continue;
      int status = 0;
      socklen_t length = sizeof(status);
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &status, &length);
      errno = status;
      rc = status == 0 ? 0 : -1;
    }
    if (rc == 0) {
      const int on = 1;
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      return fd;
    }
    *error = std::strerror(errno);
  }
  return Fd();
}

bool SendAll(const Fd& socket, const void* data, size_t bytes,
             Deadline deadline, std::string* error) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(socket.get(), next, bytes, MSG_NOSIGNAL);
    if (sent >= 0) {
      next += sent;
      bytes -= static_cast<size_t>(sent);
    } else if (errno == EAGAIN) {
      if (!AwaitEvent(socket, POLLOUT, deadline, error)) return false;
    } else if (errno != EINTR) {
      *error = std::strerror(errno);
      return false;
    }
  }
  return true;
}

bool RecvAll(const Fd& socket, void* data, size_t bytes, Deadline deadline,
             std::string* error) {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = recv(socket.get(), next, bytes, 0);
    if (got > 0) {
      next += got;
      bytes -= static_cast<size_t>(got);
    } else if (got == 0) {
      *error = "connection closed";
      return false;
    } else if (errno == EAGAIN) {
      if (!AwaitEvent(socket, POLLIN, deadline, error)) return false;
    } else if (errno != EINTR) {
      *error = std::strerror(errno);
      return false;
    }
  }
  return true;
}

}  // namespace plo
