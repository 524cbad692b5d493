// Collectives over Gloo's point-to-point TCP transfers: slices travel in
// chunks and are summed in rank order while the next chunks are under way.
#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "framework/ir/error.h"
#include "framework/runtime/comm.h"
#include "framework/runtime/comm_common.h"
#include "framework/runtime/gloo_mesh.h"

namespace plo {
namespace {

using Port = GlooMesh::Port;
using Ports = std::vector<std::unique_ptr<Port>>;  // one per peer

// Staging: kRingChunks chunks that each peer may have under way to this rank.
constexpr int64_t kChunkBytes = 256 << 10;
constexpr int64_t kRingChunks = 4;
// Below, an all_reduce exchanges whole operands: one exchange instead of two.
constexpr int64_t kSmallBytes = 16 << 10;

constexpr char* kNothing = nullptr;

// Both sides of a transfer must mean the same one: a rank that makes another
// call runs into its time limit instead of receiving foreign bytes.
uint64_t TagOf(uint64_t sequence, const char* kind, int64_t count, DType dtype,
               int detail) {
  uint64_t hash = 14695981039346656037u;
  const auto mix = [&hash](uint64_t value) {
    hash = (hash ^ value) * 1099511628211u;
    hash ^= hash >> 29;
  };
  for (const char* c = kind; *c != 0; ++c) mix(static_cast<uint64_t>(*c));
  mix(sequence);
  mix(static_cast<uint64_t>(count));
  mix(static_cast<uint64_t>(dtype));
  mix(static_cast<uint64_t>(detail));
  return hash | (uint64_t{1} << 63);
}

int64_t ChunkCount(int64_t bytes) {
  return (bytes + kChunkBytes - 1) / kChunkBytes;
}

// Calls function(offset, bytes) for each chunk.
template <typename Function>
void ForEachChunk(int64_t bytes, const Function& function) {
  for (int64_t offset = 0; offset < bytes; offset += kChunkBytes) {
    function(offset, std::min(kChunkBytes, bytes - offset));
  }
}

class GlooComm : public Comm {
 public:
  GlooComm(const LaunchInfo& info, const CommOptions& options)
      : mesh_(info, options) {
    const int64_t ring_bytes = kChunkBytes * kRingChunks;
    // One peer after the other; this rank has no part.
    staging_.reset(new char[static_cast<size_t>(ring_bytes * (size() - 1))]);
    inputs_.resize(static_cast<size_t>(size()));
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      ring_.push_back(
          std::make_unique<Port>(mesh_, peer, RingOf(peer), ring_bytes));
    }
    Barrier();
  }

  int rank() const override { return mesh_.rank(); }
  int size() const override { return mesh_.size(); }

  void AllReduce(void* data, int64_t count, DType dtype, Reduction reduction,
                 void*) override {
    CheckCollectiveArguments("all_reduce", data, count);
    Run("all_reduce", count, dtype, static_cast<int>(reduction),
        [&](uint64_t tag) {
          char* bytes = static_cast<char*>(data);
          if (count * SizeOf(dtype) <= kSmallBytes) {
            ReduceWhole(bytes, count, dtype, reduction, tag);
          } else {
            ReduceSlicesAndGather(bytes, count, dtype, reduction, tag);
          }
        });
  }

  void ReduceScatter(const void* input, void* output, int64_t slice_count,
                     DType dtype, Reduction reduction, void*) override {
    CheckCollectiveArguments("reduce_scatter", input, slice_count);
    CheckCollectiveArguments("reduce_scatter", output, slice_count);
    Run("reduce_scatter", slice_count, dtype, static_cast<int>(reduction),
        [&](uint64_t tag) {
          ReduceSlices(
              static_cast<const char*>(input), static_cast<char*>(output),
              [&](int r) {
                return SliceRange{r * slice_count, slice_count};
              },
              dtype, reduction, tag, [](int64_t, int64_t) {});
        });
  }

  void AllGather(const void* input, void* output, int64_t slice_count,
                 DType dtype, void*) override {
    CheckCollectiveArguments("all_gather", input, slice_count);
    CheckCollectiveArguments("all_gather", output, slice_count);
    Run("all_gather", slice_count, dtype, 0, [&](uint64_t tag) {
      const int64_t bytes = slice_count * SizeOf(dtype);
      char* slices = static_cast<char*>(output);
      const Ports in = MakePorts(
          [&](int peer) { return std::pair(slices + peer * bytes, bytes); });
      const Ports out = MakePorts([&](int) {
        return std::pair(static_cast<const char*>(input), bytes);
      });
      PostRecvs(in, tag, bytes);
      PostSends(out, tag, bytes);
      char* own = slices + rank() * bytes;
      if (own != input) std::memcpy(own, input, static_cast<size_t>(bytes));
      for (int64_t c = 0; c < ChunkCount(bytes); ++c) {
        mesh_.AwaitRecvFromAll(in);
      }
      AwaitSends(out, ChunkCount(bytes));
    });
  }

  void Broadcast(void* data, int64_t bytes, int root, void*) override {
    CheckCollectiveArguments("broadcast", data, bytes);
    PLO_ENFORCE(root >= 0 && root < size(), kInvalidArgument,
                "broadcast: root is ", root, " of ", size(), " ranks");
    Run("broadcast", bytes, DType::kBool, root, [&](uint64_t tag) {
      if (rank() == root) {
        const Ports out =
            MakePorts([&](int) { return std::pair(data, bytes); });
        PostSends(out, tag, bytes);
        AwaitSends(out, ChunkCount(bytes));
        return;
      }
      Port in(mesh_, root, data, bytes);
      ForEachChunk(bytes, [&](int64_t offset, int64_t n) {
        in.PostRecv(tag, offset, n);
      });
      ForEachChunk(bytes, [&](int64_t, int64_t) { in.AwaitRecv(); });
    });
  }

  void Barrier() override {
    Run("barrier", 0, DType::kBool, 0, [&](uint64_t tag) {
      const Ports ports = MakePorts([](int) { return std::pair(kNothing, 0); });
      for (const auto& port : ports) port->PostRecv(tag, 0, 0);
      for (const auto& port : ports) port->PostSend(tag, 0, 0);
      mesh_.AwaitRecvFromAll(ports);
      AwaitSends(ports, 1);
    });
  }

  void ThrowIfFailed() override { mesh_.ThrowIfFailed(); }

  void Abort(const std::string& reason) override {
    const SigpipeBlock no_sigpipe;
    mesh_.Fail("aborted: " + reason);
  }

  int64_t staging_bytes() const override {
    return kChunkBytes * kRingChunks * (size() - 1);
  }

 private:
  // One collective at a time; errors get its name.
  template <typename Function>
  void Run(const char* kind, int64_t count, DType dtype, int detail,
           const Function& function) {
    const std::lock_guard lock(mutex_);
    const SigpipeBlock no_sigpipe;
    try {
      mesh_.ThrowIfFailed();
      function(TagOf(sequence_++, kind, count, dtype, detail));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) {
        // The others would wait for this rank's part.
        mesh_.Fail(error.message());
      }
      throw error.WithContext(count == 0 ? kind
                                         : CollectiveName(kind, count, dtype));
    }
  }

  char* RingOf(int peer) const {
    const int index = peer < rank() ? peer : peer - 1;
    return staging_.get() + index * kChunkBytes * kRingChunks;
  }

  // memory_of(peer) -> (pointer, bytes)
  template <typename Function>
  Ports MakePorts(const Function& memory_of) {
    Ports ports;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      const auto [data, bytes] = memory_of(peer);
      ports.push_back(std::make_unique<Port>(mesh_, peer, data, bytes));
    }
    return ports;
  }

  static void PostRecvs(const Ports& ports, uint64_t tag, int64_t bytes) {
    ForEachChunk(bytes, [&](int64_t offset, int64_t n) {
      for (const auto& port : ports) port->PostRecv(tag, offset, n);
    });
  }
  static void PostSends(const Ports& ports, uint64_t tag, int64_t bytes) {
    ForEachChunk(bytes, [&](int64_t offset, int64_t n) {
      for (const auto& port : ports) port->PostSend(tag, offset, n);
    });
  }
  static void AwaitSends(const Ports& ports, int64_t chunks) {
    for (const auto& port : ports) {
      for (int64_t c = 0; c < chunks; ++c) port->AwaitSend();
    }
  }

  // Reduces the own slice of all ranks' inputs into `output`, chunk by chunk;
  // calls done(offset, bytes) after each chunk.
  template <typename SliceOf, typename Done>
  void ReduceSlices(const char* input, char* output, const SliceOf& slice_of,
                    DType dtype, Reduction reduction, uint64_t tag,
                    const Done& done) {
    const int64_t element = SizeOf(dtype);
    const int64_t own_bytes = slice_of(rank()).count * element;
    const char* own = input + slice_of(rank()).begin * element;
    const auto post_recv = [&](int64_t offset) {
      const int64_t slot = offset / kChunkBytes % kRingChunks * kChunkBytes;
      const int64_t n = std::min(kChunkBytes, own_bytes - offset);
      for (const auto& port : ring_) port->PostRecv(tag, slot, n);
    };
    const int64_t ahead = kChunkBytes * kRingChunks;
    for (int64_t offset = 0; offset < std::min(own_bytes, ahead);
         offset += kChunkBytes) {
      post_recv(offset);
    }
    const Ports out = MakePorts([&](int peer) {
      return std::pair(input + slice_of(peer).begin * element,
                       slice_of(peer).count * element);
    });
    for (const auto& port : out) {
      ForEachChunk(
          slice_of(port->peer()).count * element,
          [&](int64_t offset, int64_t n) { port->PostSend(tag, offset, n); });
    }
    ForEachChunk(own_bytes, [&](int64_t offset, int64_t n) {
      mesh_.AwaitRecvFromAll(ring_);
      const int64_t slot = offset / kChunkBytes % kRingChunks * kChunkBytes;
      for (int r = 0; r < size(); ++r) {
        inputs_[static_cast<size_t>(r)] =
            r == rank() ? own + offset : RingOf(r) + slot;
      }
      ReduceInRankOrder(inputs_, output + offset, n / element, dtype,
                        reduction);
      if (offset + ahead < own_bytes) post_recv(offset + ahead);
      done(offset, n);
    });
    for (const auto& port : out) {
      const int64_t bytes = slice_of(port->peer()).count * element;
      for (int64_t c = 0; c < ChunkCount(bytes); ++c) port->AwaitSend();
    }
  }

  // A reduced chunk travels to the others while the next one is reduced. A
  // peer overwrites its part of `data` with it only after that part has
  // arrived here.
  void ReduceSlicesAndGather(char* data, int64_t count, DType dtype,
                             Reduction reduction, uint64_t tag) {
    const int64_t element = SizeOf(dtype);
    const auto slice_of = [&](int r) { return OwnSlice(count, r, size()); };
    const auto bytes_of = [&](int r) { return slice_of(r).count * element; };
    const uint64_t gather_tag = TagOf(tag, "gather", count, dtype, 0);
    char* own = data + slice_of(rank()).begin * element;
    const Ports in = MakePorts([&](int peer) {
      return std::pair(data + slice_of(peer).begin * element, bytes_of(peer));
    });
    const Ports out =
        MakePorts([&](int) { return std::pair(own, bytes_of(rank())); });
    for (const auto& port : in) {
      ForEachChunk(bytes_of(port->peer()), [&](int64_t offset, int64_t n) {
        port->PostRecv(gather_tag, offset, n);
      });
    }
    ReduceSlices(data, own, slice_of, dtype, reduction, tag,
                 [&](int64_t offset, int64_t n) {
                   for (const auto& port : out) {
                     port->PostSend(gather_tag, offset, n);
                   }
                 });
    for (const auto& port : in) {
      ForEachChunk(bytes_of(port->peer()),
                   [&](int64_t, int64_t) { port->AwaitRecv(); });
    }
    AwaitSends(out, ChunkCount(bytes_of(rank())));
  }

  // Every rank gets every operand and reduces all of it.
  void ReduceWhole(char* data, int64_t count, DType dtype, Reduction reduction,
                   uint64_t tag) {
    const int64_t bytes = count * SizeOf(dtype);
    if (bytes == 0) return;
    PostRecvs(ring_, tag, bytes);
    const Ports out = MakePorts([&](int) { return std::pair(data, bytes); });
    PostSends(out, tag, bytes);
    mesh_.AwaitRecvFromAll(ring_);
    AwaitSends(out, 1);
    for (int r = 0; r < size(); ++r) {
      inputs_[static_cast<size_t>(r)] = r == rank() ? data : RingOf(r);
    }
    ReduceInRankOrder(inputs_, data, count, dtype, reduction);
  }

  GlooMesh mesh_;
  std::mutex mutex_;  // guards what follows
  uint64_t sequence_ = 0;
  std::unique_ptr<char[]> staging_;
  std::vector<const void*> inputs_;
  Ports ring_;
};

static_assert(kSmallBytes <= kChunkBytes);

}  // namespace

std::unique_ptr<Comm> CreateGlooComm(const LaunchInfo& info,
                                     const CommOptions& options) {
  PLO_ENFORCE(
      info.world_size >= 1 && info.rank >= 0 && info.rank < info.world_size,
      kInvalidArgument, "rank ", info.rank, " of ", info.world_size);
  if (info.world_size == 1) {
    return std::move(CreateThreadComms(1, options).front());
  }
  return std::make_unique<GlooComm>(info, options);
}

}  // namespace plo
