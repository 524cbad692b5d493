#include "framework/runtime/gloo_mesh.h"

#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "framework/ir/error.h"
#include "framework/runtime/comm_common.h"

namespace plo {
namespace {

// Collectives use tags with the top bit set.
constexpr uint64_t kFarewellTag = 1;
constexpr uint64_t kEndTag = 2;
constexpr char kLeaves = 'L';
constexpr char kStops = 'S';

// Gloo's own time limits close all connections: never let one pass by itself.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);
constexpr std::chrono::milliseconds kTick(20);
// How long a farewell may take to leave, and the cause of a failed transfer to
// show.
constexpr std::chrono::milliseconds kFarewellTime(200);
constexpr int kCausePolls = 100;
constexpr std::chrono::milliseconds kCausePollTime(2);

int64_t NowNs() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

std::string RankKey(int rank) { return StrCat("rank/", rank); }

// Gloo's view of the key-value store.
class RendezvousStore : public gloo::rendezvous::Store {
 public:
  RendezvousStore(KvClient& client, Deadline deadline)
      : client_(client), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    client_.Set("gloo/" + key, std::string_view(data.data(), data.size()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value =
        client_.Get("gloo/" + key, MillisecondsLeft(deadline_) / 1000.0);
    return std::vector<char>(value.begin(), value.end());
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  KvClient& client_;
  const Deadline deadline_;
};

sigset_t SigpipeSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

bool SigpipePending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

SigpipeBlock::SigpipeBlock() : was_pending_(SigpipePending()) {
  const sigset_t set = SigpipeSet();
  pthread_sigmask(SIG_BLOCK, &set, &previous_);
}

SigpipeBlock::~SigpipeBlock() {
  if (!was_pending_ && SigpipePending()) {
    const sigset_t set = SigpipeSet();
    const timespec now{0, 0};
    sigtimedwait(&set, nullptr, &now);
  }
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

GlooMesh::Port::Port(GlooMesh& mesh, int peer, const void* data, int64_t bytes)
    : mesh_(mesh),
      peer_(peer),
      buffer_(mesh.context_->createUnboundBuffer(const_cast<void*>(data),
                                                 static_cast<size_t>(bytes))) {
  mesh_.ThrowIfFailed();
  std::lock_guard lock(mesh_.mutex_);
  mesh_.ports_.insert(this);
}

GlooMesh::Port::~Port() {
  std::lock_guard lock(mesh_.mutex_);
  mesh_.ports_.erase(this);
}

template <typename Function>
void GlooMesh::Port::Guard(const Function& function) {
  mesh_.ThrowIfFailed();
  try {
    function();
  } catch (const std::exception& error) {
    mesh_.ThrowTransferFailed(peer_, error.what());
  }
}

template <typename Function>
void GlooMesh::Port::Await(const Function& wait) {
  mesh_.wait_peer_ = peer_;
  mesh_.wait_began_ns_ = NowNs();
  Guard([&] {
    const bool complete = wait();
    mesh_.wait_began_ns_ = 0;
    if (!complete) throw std::runtime_error("interrupted");
  });
}

void GlooMesh::Port::PostSend(uint64_t tag, int64_t offset, int64_t bytes) {
  Guard([&] {
    buffer_->send(peer_, tag, static_cast<size_t>(offset),
                  static_cast<size_t>(bytes));
  });
}

void GlooMesh::Port::PostRecv(uint64_t tag, int64_t offset, int64_t bytes) {
  Guard([&] {
    buffer_->recv(peer_, tag, static_cast<size_t>(offset),
                  static_cast<size_t>(bytes));
  });
}

void GlooMesh::Port::AwaitSend() {
  Await([&] { return buffer_->waitSend(nullptr, kForever); });
}

void GlooMesh::Port::AwaitRecv() {
  Await([&] { return buffer_->waitRecv(nullptr, kForever); });
}

bool GlooMesh::Port::Arrived() {
  // The first wait may only take back the wake-up of the failure.
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      if (buffer_->waitRecv(nullptr, std::chrono::milliseconds(0))) return true;
    } catch (const std::exception&) {
      return false;
    }
  }
  return false;
}

GlooMesh::GlooMesh(const LaunchInfo& info, const CommOptions& options)
    : rank_(info.rank),
      size_(info.world_size),
      timeout_seconds_(options.timeout_seconds) {
  const SigpipeBlock no_sigpipe;  // inherited by Gloo's thread and the monitor
  try {
    Connect(info);
    WatchPeers();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    PLO_THROW(kUnavailable, "rank ", rank_,
              " cannot connect to the other ranks: ", error.what());
  }
  monitor_ = std::thread([this] { Monitor(); });
}

GlooMesh::~GlooMesh() {
  const SigpipeBlock no_sigpipe;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  monitor_.join();
  if (failure_.empty()) SayFarewell(kLeaves, "");
  watches_.clear();
  closer_.reset();
  context_.reset();  // closes what is open, data under way included
}

void GlooMesh::Connect(const LaunchInfo& info) {
  const Deadline deadline = DeadlineIn(timeout_seconds_);
  if (rank_ == 0) {
    server_ = std::make_unique<KvServer>(info.master_addr, info.master_port);
  }
  client_ = std::make_unique<KvClient>(info.master_addr, info.master_port,
                                       timeout_seconds_);
  Greet(info, deadline);

  gloo::transport::tcp::attr attr;
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
    attr.iface = interface;
  } else {
    attr.hostname = client_->local_address();
  }
  device_ = gloo::transport::tcp::CreateDevice(attr);
  context_ = std::make_shared<gloo::rendezvous::Context>(rank_, size_);
  // Gloo waits five times as long for a connection.
  const auto limit = static_cast<int64_t>(timeout_seconds_ * 1000 / 5);
  context_->setTimeout(std::chrono::milliseconds(std::max<int64_t>(limit, 1)));
  RendezvousStore store(*client_, deadline);
  context_->connectFullMesh(store, device_);
}

// Waits until all ranks are there and agree on how many they are.
void GlooMesh::Greet(const LaunchInfo& info, Deadline deadline) {
  const std::string at = StrCat(info.master_addr, ":", info.master_port);
  PLO_ENFORCE(client_->SetIfAbsent(RankKey(rank_), std::to_string(size_)),
              kFailedPrecondition, "two processes have RANK ", rank_, " at ",
              at);
  std::vector<int> missing;
  for (int other = 0; other < size_; ++other) {
    const double left =
        missing.empty() ? MillisecondsLeft(deadline) / 1000.0 : 0;
    const auto theirs = client_->TryGet(RankKey(other), left);
    if (!theirs) {
      missing.push_back(other);
      continue;
    }
    PLO_ENFORCE(*theirs == std::to_string(size_), kFailedPrecondition,
                "WORLD_SIZE is ", size_, " on rank ", rank_, " but ", *theirs,
                " on rank ", other);
  }
  PLO_ENFORCE(missing.empty(), kUnavailable, RankList(missing), " of ", size_,
              " did not appear at ", at, " within ", timeout_seconds_, " s");
}

void GlooMesh::WatchPeers() {
  closer_ = context_->createUnboundBuffer(&own_farewell_, 1);
  watches_ = std::vector<Watch>(static_cast<size_t>(size_));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    Watch& watch = watches_[static_cast<size_t>(peer)];
    watch.message =
        std::make_unique<Port>(*this, peer, &watch.farewell, sizeof(Farewell));
    watch.message->PostRecv(kFarewellTag, 0, sizeof(Farewell));
    watch.end = std::make_unique<Port>(*this, peer, &watch.farewell, 0);
    watch.end->PostRecv(kEndTag, 0, 0);
    watch.sender =
        std::make_unique<Port>(*this, peer, &own_farewell_, sizeof(Farewell));
  }
}

void GlooMesh::Monitor() {
  std::unique_lock lock(mutex_);
  while (!stopping_ && failure_.empty()) {
    stop_.wait_for(lock, kTick);
    if (stopping_) return;
    lock.unlock();
    PollPeers();
    const int64_t began = wait_began_ns_;
    const int peer = wait_peer_;
    if (began != 0 &&
        static_cast<double>(NowNs() - began) * 1e-9 > timeout_seconds_) {
      {
        std::lock_guard guard(mutex_);
        timed_out_ = failure_.empty();
      }
      Fail(StrCat("no answer from rank ", peer, " within ", timeout_seconds_,
                  " s"));
    }
    lock.lock();
  }
}

void GlooMesh::PollPeers() {
  std::lock_guard lock(watch_mutex_);
  for (int peer = 0; peer < size_; ++peer) {
    Watch& watch = watches_[static_cast<size_t>(peer)];
    if (peer == rank_ || watch.departed) continue;
    try {
      // Returns at once: throws if the connection has ended, else
      // "interrupted".
      watch.end->buffer_->abortWaitRecv();
      watch.end->buffer_->waitRecv(nullptr, kForever);
    } catch (const std::exception&) {
      // A farewell came over the same connection and was stored before its end.
      const Farewell& farewell = watch.farewell;
      if (farewell.kind == kLeaves) {
        watch.departed = true;
      } else if (farewell.kind == kStops) {
        Fail(StrCat(
            "rank ", peer, " stopped: ",
            std::string_view(farewell.text,
                             strnlen(farewell.text, sizeof(farewell.text)))));
      } else {
        Fail(StrCat("lost rank ", peer, ": it ended or was killed"));
      }
    }
  }
}

void GlooMesh::AwaitRecvFromAll(
    const std::vector<std::unique_ptr<Port>>& ports) {
  for (size_t i = 0; i < ports.size(); ++i) {
    try {
      ports[i]->AwaitRecv();
    } catch (const Error&) {
      {
        std::lock_guard lock(mutex_);
        if (!timed_out_) throw;
      }
      std::vector<int> missing{ports[i]->peer()};
      for (size_t j = i + 1; j < ports.size(); ++j) {
        if (!ports[j]->Arrived()) missing.push_back(ports[j]->peer());
      }
      PLO_THROW(kUnavailable, "no answer from ", RankList(missing), " within ",
                timeout_seconds_, " s");
    }
  }
}

void GlooMesh::Fail(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = reason;
  }
  SayFarewell(kStops, reason);
  CloseConnections();
  std::lock_guard lock(mutex_);
  for (Port* port : ports_) {
    port->buffer_->abortWaitRecv();
    port->buffer_->abortWaitSend();
  }
}

void GlooMesh::ThrowIfFailed() {
  std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw Error(ErrorCode::kUnavailable, failure_);
}

void GlooMesh::SayFarewell(char kind, const std::string& text) {
  own_farewell_.kind = kind;
  const size_t bytes = std::min(text.size(), sizeof(own_farewell_.text));
  std::memcpy(own_farewell_.text, text.data(), bytes);
  std::vector<gloo::transport::UnboundBuffer*> sent;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    auto* buffer = watches_[static_cast<size_t>(peer)].sender->buffer_.get();
    try {
      buffer->send(peer, kFarewellTag, 0, sizeof(Farewell));
      sent.push_back(buffer);
    } catch (const std::exception&) {
      // That peer is gone.
    }
  }
  for (auto* buffer : sent) {
    try {
      buffer->waitSend(nullptr, kFarewellTime);
    } catch (const std::exception&) {
      // A peer that does not read will find out by itself.
    }
  }
}

void GlooMesh::CloseConnections() {
  try {
    // A wait that cannot succeed: on its time limit Gloo closes all
    // connections of the context and wakes their transfers. Pair::close()
    // would reset the connections, and a farewell could be lost.
    closer_->waitRecv(nullptr, std::chrono::milliseconds(0));
  } catch (const std::exception&) {
    // Expected.
  }
}

void GlooMesh::ThrowTransferFailed(int peer, const std::string& what) {
  wait_began_ns_ = 0;
  // The peer that ended this transfer may only have followed another one, and
  // its farewell may be a moment behind.
  for (int poll = 0; poll < kCausePolls; ++poll) {
    ThrowIfFailed();
    PollPeers();
    {
      std::lock_guard lock(watch_mutex_);
      if (watches_[static_cast<size_t>(peer)].departed) break;
    }
    std::this_thread::sleep_for(kCausePollTime);
  }
  bool departed = false;
  {
    std::lock_guard lock(watch_mutex_);
    departed = watches_[static_cast<size_t>(peer)].departed;
  }
  Fail(departed ? StrCat("rank ", peer, " left")
                : StrCat("transfer with rank ", peer, " failed: ", what));
  ThrowIfFailed();
  PLO_THROW(kInternal, "a failed mesh without a reason");
}

}  // namespace plo
