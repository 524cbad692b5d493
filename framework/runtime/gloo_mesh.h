// Gloo's TCP connections between all ranks, made safe to fail: a rank that
// dies, stops or aborts is noticed by the others at once, and one that stays
// silent within the time limit.
//
// Gloo alone leaves gaps: it does not wake a transfer whose payload is under
// way when the peer dies, names no ranks, and on a time limit closes all
// connections without a word. So every mesh has a monitor thread that looks at
// the connections and at the clock, and a rank says why it stops (a farewell)
// before it closes its connections.
#ifndef PLO_FRAMEWORK_RUNTIME_GLOO_MESH_H_
#define PLO_FRAMEWORK_RUNTIME_GLOO_MESH_H_

#include <gloo/rendezvous/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "framework/runtime/comm.h"
#include "framework/runtime/kv_store.h"

namespace plo {

// Gloo writes to sockets without MSG_NOSIGNAL: keeps SIGPIPE from this thread
// while in scope.
class SigpipeBlock {
 public:
  SigpipeBlock();
  ~SigpipeBlock();

 private:
  sigset_t previous_;
  bool was_pending_;
};

// Ports are used by one thread at a time; Fail() is callable from any.
class GlooMesh {
 public:
  // Memory for transfers with one peer, in one direction. Transfers with the
  // same tag complete in the order in which they were posted.
  class Port {
   public:
    Port(GlooMesh& mesh, int peer, const void* data, int64_t bytes);
    ~Port();
    Port(const Port&) = delete;
    Port& operator=(const Port&) = delete;

    int peer() const { return peer_; }
    // All throw Unavailable once the mesh has failed.
    void PostSend(uint64_t tag, int64_t offset, int64_t bytes);
    void PostRecv(uint64_t tag, int64_t offset, int64_t bytes);
    // Wait for one posted transfer.
    void AwaitSend();
    void AwaitRecv();
    // After a failure: whether a receive had completed before it.
    bool Arrived();

   private:
    friend class GlooMesh;
    template <typename Function>
    void Guard(const Function& function);
    template <typename Function>
    void Await(const Function& wait);

    GlooMesh& mesh_;
    const int peer_;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
  };

  // Connects all ranks, from the interface that reaches the master or that
  // GLOO_SOCKET_IFNAME names. Throws Unavailable as CreateGlooComm says, and
  // FailedPrecondition when two processes have one rank or when ranks disagree
  // on the world size.
  GlooMesh(const LaunchInfo& info, const CommOptions& options);
  ~GlooMesh();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Waits for one receive on each port; the error names all that are missing.
  void AwaitRecvFromAll(const std::vector<std::unique_ptr<Port>>& ports);

  // Ends all transfers, here and on the peers, which learn the reason.
  void Fail(const std::string& reason);
  void ThrowIfFailed();

 private:
  // Tells one peer why this rank goes.
  struct Farewell {
    char kind;  // 0 while there is none
    char text[255];
  };
  // What is known of a peer.
  struct Watch {
    Farewell farewell{};
    std::unique_ptr<Port> message;  // receives the farewell
    std::unique_ptr<Port> end;      // never matched; fails with the connection
    std::unique_ptr<Port> sender;   // sends ours
    bool departed = false;
  };

  void Connect(const LaunchInfo& info);
  void Greet(const LaunchInfo& info, Deadline deadline);
  void WatchPeers();
  void Monitor();
  // Fails the mesh if a peer is lost or stopped.
  void PollPeers();
  void SayFarewell(char kind, const std::string& text);
  void CloseConnections();
  // An operation with `peer` failed: finds the cause, fails the mesh, throws.
  [[noreturn]] void ThrowTransferFailed(int peer, const std::string& what);

  const int rank_;
  const int size_;
  const double timeout_seconds_;
  std::unique_ptr<KvServer> server_;  // rank 0
  std::unique_ptr<KvClient> client_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::rendezvous::Context> context_;

  std::mutex mutex_;        // guards failure_, ports_, stopping_
  std::string failure_;     // empty while all is well
  bool timed_out_ = false;  // whether silence is the cause
  std::set<Port*> ports_;   // to wake on failure
  bool stopping_ = false;
  std::condition_variable stop_;

  // The wait in progress: when it began, and for whom; 0 when none.
  std::atomic<int64_t> wait_began_ns_{0};
  std::atomic<int> wait_peer_{-1};

  std::mutex watch_mutex_;  // guards the members of watches_
  std::vector<Watch> watches_;
  Farewell own_farewell_{};
  std::unique_ptr<gloo::transport::UnboundBuffer> closer_;
  std::thread monitor_;
};

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_GLOO_MESH_H_
