// A small key-value store over TCP through which the ranks of a run find each
// other. Rank 0 serves it; every rank, rank 0 too, is a client.
//
//   KvServer server("10.0.0.5", 29500);           // rank 0
//   KvClient client("10.0.0.5", 29500, 30);       // all ranks
//   client.Set("hello", "world");
//   std::string value = client.Get("hello", 30);  // waits for the key
#ifndef PLO_FRAMEWORK_RUNTIME_KV_STORE_H_
#define PLO_FRAMEWORK_RUNTIME_KV_STORE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "framework/runtime/socket_utils.h"

namespace plo {

inline constexpr uint32_t kMaxKeyBytes = 4096;
inline constexpr uint32_t kMaxValueBytes = 16 << 20;

// Serves from a thread of its own until destroyed. Clients that break the
// protocol are disconnected.
class KvServer {
 public:
  // Listens on `address` where this host has it and on all interfaces
  // otherwise (a service address, say). Port 0 picks a free one. Throws
  // Unavailable naming the port when it is in use.
  KvServer(const std::string& address, int port);
  ~KvServer();
  KvServer(const KvServer&) = delete;
  KvServer& operator=(const KvServer&) = delete;

  int port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Thread-safe; calls are served one at a time. Every method throws Unavailable
// when the server is gone or does not answer in time; the client is of no use
// after that.
class KvClient {
 public:
  // Retries until the server is up or `timeout_seconds` have passed.
  KvClient(const std::string& address, int port, double timeout_seconds);
  KvClient(const KvClient&) = delete;
  KvClient& operator=(const KvClient&) = delete;

  // Throws InvalidArgument when key or value are too long.
  void Set(std::string_view key, std::string_view value);
  // False, changing nothing, if the key has a value already.
  bool SetIfAbsent(std::string_view key, std::string_view value);
  // Waits for the key; nothing when it has no value within the time.
  std::optional<std::string> TryGet(std::string_view key,
                                    double timeout_seconds);
  // The same, throws Unavailable naming the key.
  std::string Get(std::string_view key, double timeout_seconds);

  // The address of this host from which the server was reached.
  const std::string& local_address() const { return local_address_; }

 private:
  // The value in the answer; nothing when the answer is "no".
  std::optional<std::string> Request(char operation, std::string_view key,
                                     std::string_view value,
                                     double timeout_seconds);

  const std::string server_;  // "address:port", for messages
  const double timeout_seconds_;
  std::mutex mutex_;
  Fd socket_;
  std::string local_address_;
};

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_KV_STORE_H_
