// Runs a function on every rank of a comm of either kind.
#ifndef PLO_TESTS_FRAMEWORK_COMM_TEST_UTILS_H_
#define PLO_TESTS_FRAMEWORK_COMM_TEST_UTILS_H_

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/ir/error.h"
#include "framework/runtime/comm.h"
#include "framework/runtime/socket_utils.h"
#include "tests/framework/staged_nccl_comm.h"

namespace plo {

enum class CommKind { kThread, kGloo, kNccl };

inline std::string NameOf(CommKind kind) {
  if (kind == CommKind::kNccl) return "Nccl";
  return kind == CommKind::kThread ? "Thread" : "Gloo";
}

inline std::unique_ptr<Comm> CreateComm(CommKind kind, const LaunchInfo& info,
                                        const CommOptions& options) {
  if (kind == CommKind::kGloo) return CreateGlooComm(info, options);
  return std::make_unique<StagedNcclComm>(info, options);
}

inline int FreePort() { return PortOf(ListenOn("127.0.0.1", 0)); }

inline LaunchInfo LocalLaunch(int rank, int size, int port) {
  LaunchInfo info;
  info.rank = info.local_rank = rank;
  info.world_size = info.local_world_size = size;
  info.master_addr = "127.0.0.1";
  info.master_port = port;
  return info;
}

// Calls function(comm, rank) on a thread per rank; Gloo and NCCL ranks are
// threads with a mesh of their own. Returns what each rank threw, empty if
// nothing. A rank's comm is destroyed when its function returns or throws.
inline std::vector<std::string> RunRanks(
    CommKind kind, int size, const CommOptions& options,
    const std::function<void(Comm&, int)>& function) {
  std::vector<std::unique_ptr<Comm>> comms(static_cast<size_t>(size));
  if (kind == CommKind::kThread) comms = CreateThreadComms(size, options);
  const int port = kind == CommKind::kThread ? 0 : FreePort();
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto& comm = comms[static_cast<size_t>(rank)];
      try {
        if (kind != CommKind::kThread) {
          comm = CreateComm(kind, LocalLaunch(rank, size, port), options);
        }
        function(*comm, rank);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
      comm.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace plo

#endif  // PLO_TESTS_FRAMEWORK_COMM_TEST_UTILS_H_
