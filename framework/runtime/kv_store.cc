#include "framework/runtime/kv_store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <list>
#include <map>
#include <thread>
#include <vector>

#include "framework/ir/error.h"

namespace plo {
namespace {

// The protocol: both sides send kMagic; then requests (header, key, value) and
// answers (header, value) alternate, in the byte order of the machine.
constexpr char kMagic[] = "plo-kv 1";
constexpr size_t kMagicBytes = sizeof(kMagic) - 1;

constexpr char kSet = 'S';
constexpr char kSetIfAbsent = 'A';
constexpr char kGet = 'G';

struct RequestHeader {
  uint32_t operation;
  uint32_t key_bytes;
  uint32_t value_bytes;
  uint32_t timeout_ms;
};
struct AnswerHeader {
  uint32_t ok;
  uint32_t value_bytes;
};

// What a client adds to the server's time limit before it gives up itself.
constexpr double kGraceSeconds = 5;

struct Client {
  Fd socket;
  bool greeted = false;
  std::string input;
  std::string output;
  bool waiting = false;  // a get without a value yet
  std::string key;
  Deadline deadline;
};

}  // namespace

struct KvServer::Impl {
  Fd listener;
  Fd wake;
  std::map<std::string, std::string> values;
  std::list<Client> clients;
  std::thread thread;

  void Run();
  void Accept();
  bool Receive(Client& client);
  bool Serve(Client& client);
  bool Flush(Client& client);
  void Answer(Client& client, const std::string* value);
  void AnswerWaiting();
  int PollTimeout() const;
};

KvServer::KvServer(const std::string& address, int port)
    : impl_(std::make_unique<Impl>()) {
  impl_->listener = ListenOn(address, port);
  impl_->wake = Fd(eventfd(0, EFD_CLOEXEC));
  PLO_ENFORCE(impl_->wake.valid(), kUnavailable,
              "eventfd: ", std::strerror(errno));
  impl_->thread = std::thread([this] { impl_->Run(); });
}

KvServer::~KvServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written =
      write(impl_->wake.get(), &one, sizeof(one));
  impl_->thread.join();
}

int KvServer::port() const { return PortOf(impl_->listener); }

void KvServer::Impl::Run() {
  std::vector<pollfd> entries;
  while (true) {
    entries.clear();
    entries.push_back({wake.get(), POLLIN, 0});
    entries.push_back({listener.get(), POLLIN, 0});
    for (const Client& client : clients) {
      const short out = client.output.empty() ? 0 : POLLOUT;
      entries.push_back(
          {client.socket.get(), static_cast<short>(POLLIN | out), 0});
    }
    poll(entries.data(), entries.size(), PollTimeout());
    if (entries[0].revents != 0) return;
    auto entry = entries.begin() + 2;
    for (auto client = clients.begin(); client != clients.end(); ++entry) {
      const bool alive = (entry->revents == 0 || Receive(*client)) &&
                         Serve(*client) && Flush(*client);
      client = alive ? std::next(client) : clients.erase(client);
    }
    AnswerWaiting();
    if (entries[1].revents != 0) Accept();
  }
}

int KvServer::Impl::PollTimeout() const {
  int timeout = -1;
  for (const Client& client : clients) {
    if (!client.waiting) continue;
    const int left = MillisecondsLeft(client.deadline);
    timeout = timeout < 0 ? left : std::min(timeout, left);
  }
  return timeout;
}

void KvServer::Impl::Accept() {
  Fd socket(
      accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.valid()) return;
  clients.emplace_back();
  clients.back().socket = std::move(socket);
  clients.back().output = kMagic;
  if (!Flush(clients.back())) clients.pop_back();
}

// Reads what is there; false when the client is gone.
bool KvServer::Impl::Receive(Client& client) {
  char buffer[1 << 16];
  while (true) {
    const ssize_t got = recv(client.socket.get(), buffer, sizeof(buffer), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    client.input.append(buffer, static_cast<size_t>(got));
  }
}

// Handles complete requests; false on a breach of the protocol.
bool KvServer::Impl::Serve(Client& client) {
  if (!client.greeted) {
    const size_t known = std::min(client.input.size(), kMagicBytes);
    if (client.input.compare(0, known, kMagic, known) != 0) return false;
    if (known < kMagicBytes) return true;
    client.input.erase(0, kMagicBytes);
    client.greeted = true;
  }
  RequestHeader header;
  while (!client.waiting && client.input.size() >= sizeof(header)) {
    std::memcpy(&header, client.input.data(), sizeof(header));
    if (header.key_bytes > kMaxKeyBytes ||
        header.value_bytes > kMaxValueBytes) {
      return false;
    }
    const size_t bytes = sizeof(header) + header.key_bytes + header.value_bytes;
    if (client.input.size() < bytes) break;
    std::string key = client.input.substr(sizeof(header), header.key_bytes);
    std::string value = client.input.substr(sizeof(header) + header.key_bytes,
                                            header.value_bytes);
    client.input.erase(0, bytes);
    const std::string none;
    switch (header.operation) {
      case kSet:
        values[key] = std::move(value);
        Answer(client, &none);
        break;
      case kSetIfAbsent:
        Answer(client,
               values.emplace(key, std::move(value)).second ? &none : nullptr);
        break;
      case kGet:
        client.waiting = true;
        client.key = std::move(key);
        client.deadline = DeadlineIn(header.timeout_ms / 1000.0);
        break;
      default:
        return false;
    }
  }
  return true;
}

bool KvServer::Impl::Flush(Client& client) {
  while (!client.output.empty()) {
    const ssize_t sent = send(client.socket.get(), client.output.data(),
                              client.output.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    client.output.erase(0, static_cast<size_t>(sent));
  }
  return true;
}

void KvServer::Impl::Answer(Client& client, const std::string* value) {
  const AnswerHeader header{
      value != nullptr ? 1u : 0u,
      value != nullptr ? static_cast<uint32_t>(value->size()) : 0u};
  client.output.append(reinterpret_cast<const char*>(&header), sizeof(header));
  if (value != nullptr) client.output += *value;
}

void KvServer::Impl::AnswerWaiting() {
  const auto now = std::chrono::steady_clock::now();
  for (Client& client : clients) {
    if (!client.waiting) continue;
    const auto found = values.find(client.key);
    if (found == values.end() && now < client.deadline) continue;
    client.waiting = false;
    Answer(client, found == values.end() ? nullptr : &found->second);
    Flush(client);  // a failure shows at the next poll
  }
}

KvClient::KvClient(const std::string& address, int port, double timeout_seconds)
    : server_(StrCat(address, ":", port)), timeout_seconds_(timeout_seconds) {
  const Deadline deadline = DeadlineIn(timeout_seconds);
  std::string error = "no answer in time";
  while (true) {
    socket_ = TryConnect(address, port, deadline, &error);
    char magic[kMagicBytes];
    if (socket_.valid() &&
        SendAll(socket_, kMagic, kMagicBytes, deadline, &error) &&
        RecvAll(socket_, magic, kMagicBytes, deadline, &error)) {
      PLO_ENFORCE(std::memcmp(magic, kMagic, kMagicBytes) == 0, kUnavailable,
                  "something other than rank 0 answers at ", server_);
      break;
    }
    socket_ = Fd();
    PLO_ENFORCE(std::chrono::steady_clock::now() < deadline, kUnavailable,
                "rank 0 does not answer at ", server_, " within ",
                timeout_seconds, " s: ", error);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  local_address_ = LocalAddressOf(socket_);
}

std::optional<std::string> KvClient::Request(char operation,
                                             std::string_view key,
                                             std::string_view value,
                                             double timeout_seconds) {
  PLO_ENFORCE(key.size() <= kMaxKeyBytes, kInvalidArgument, "a key of ",
              key.size(), " bytes, at most ", kMaxKeyBytes);
  PLO_ENFORCE(value.size() <= kMaxValueBytes, kInvalidArgument, "a value of ",
              value.size(), " bytes, at most ", kMaxValueBytes);
  const RequestHeader header{
      static_cast<uint32_t>(operation), static_cast<uint32_t>(key.size()),
      static_cast<uint32_t>(value.size()),
      static_cast<uint32_t>(std::ceil(timeout_seconds * 1000))};
  std::string message(reinterpret_cast<const char*>(&header), sizeof(header));
  message.append(key).append(value);

  std::lock_guard lock(mutex_);
  const Deadline deadline = DeadlineIn(timeout_seconds + kGraceSeconds);
  std::string error = "connection lost earlier";
  AnswerHeader answer{};
  std::string result;
  bool ok =
      socket_.valid() &&
      SendAll(socket_, message.data(), message.size(), deadline, &error) &&
      RecvAll(socket_, &answer, sizeof(answer), deadline, &error);
  if (ok && answer.value_bytes > kMaxValueBytes) {
    error = "malformed answer";
    ok = false;
  }
  if (ok) {
    result.resize(answer.value_bytes);
    ok = RecvAll(socket_, result.data(), result.size(), deadline, &error);
  }
  if (!ok) {
    socket_ = Fd();  // requests and answers may be out of step
    PLO_THROW(kUnavailable, "lost rank 0, which serves the key-value store at ",
              server_, ": ", error);
  }
  if (answer.ok == 0) return std::nullopt;
  return result;
}

void KvClient::Set(std::string_view key, std::string_view value) {
  Request(kSet, key, value, timeout_seconds_);
}

bool KvClient::SetIfAbsent(std::string_view key, std::string_view value) {
  return Request(kSetIfAbsent, key, value, timeout_seconds_).has_value();
}

std::optional<std::string> KvClient::TryGet(std::string_view key,
                                            double timeout_seconds) {
  return Request(kGet, key, "", timeout_seconds);
}

std::string KvClient::Get(std::string_view key, double timeout_seconds) {
  auto value = TryGet(key, timeout_seconds);
  PLO_ENFORCE(value.has_value(), kUnavailable, "no value for \"", key, "\" at ",
              server_, " within ", timeout_seconds, " s");
  return *std::move(value);
}

}  // namespace plo
