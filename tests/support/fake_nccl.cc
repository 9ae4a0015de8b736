// SPDX-License-Identifier: Apache-2.0
// A fake NCCL: a shared object with NCCL 2.28's public prototypes (as nccl_api.h has them) that runs
// collectives between processes on host memory, on HostStreams, through a small file in shared memory. Loaded
// with MUSTER_NCCL_LIBRARY or GroupSettings::library; never part of the product. Told what to do wrong by
// environment variables, read when a communicator is made:
//   MUSTER_FAKE_NCCL_IN_PROGRESS=N  each call answers "in progress", and so do the N questions after it
//   MUSTER_FAKE_NCCL_INIT_HANG=1    the communicator never comes up
//   MUSTER_FAKE_NCCL_HANG_AT=K      the K-th collective never finishes on this rank
//   MUSTER_FAKE_NCCL_ERROR_AT=K     the K-th collective does not finish and the communicator reports a remote
//                                   error
//   MUSTER_FAKE_NCCL_REFUSE_AT=K    the K-th collective is refused as an invalid argument
//   MUSTER_FAKE_NCCL_DEAF=1         a rank that ended is not noticed, as by the transports within a host
//   MUSTER_FAKE_NCCL_LOG=FILE       one line per call that ends a communicator: finalize, destroy, revoke,
//                                   abort
// What it has of the real one's ways (NCCL 2.28.9, src/init.cc, enqueue.cc and group.cc):
// - The asynchronous error of a non-blocking communicator stays, an invalid argument too: ncclCommEnsureReady
//   answers every later call with it.
// - A graph with captured collectives counts in localPersistentRefs. Finalize and abort wait until it is
//   destroyed, abort within its call; after a revoke nobody waits, and the graph's destructor then finds the
//   communicator freed. So does a launch that is still queued. Both end the process here, loudly.
// - A revoke waits for what runs, and lowers the abort flag again.
// Compiled with FAKE_NCCL_OLD it is a 2.18 without ncclMemAlloc and ncclCommRevoke.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <poll.h>
#include <set>
#include <string>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include "tests/support/host_device.h"
#include "worker_runtime/groups/nccl/nccl_api.h"

namespace {

using namespace muster::nccl;
using muster::testing::HostStream;

constexpr int kMaxRanks = 16;
constexpr std::size_t kSlotBytes = 64 << 10;
constexpr std::size_t kMailBytes = 4 << 10;

/// From one rank to another: `filled` chunks were put in and `taken` of them taken out.
struct Mailbox {
  std::atomic<std::uint64_t> filled, taken;
  unsigned char bytes[kMailBytes];
};

/// The shared file. Every rank's slot holds one chunk of its input.
struct Segment {
  std::atomic<int> joined;
  std::atomic<std::uint32_t> arrived[kMaxRanks];
  std::atomic<int> pid[kMaxRanks];
  alignas(64) unsigned char slot[kMaxRanks][kSlotBytes];
  alignas(64) Mailbox mail[kMaxRanks][kMaxRanks];  // [from][to]
};

long from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? 0 : std::atol(value);
}

void log_call(const char* word) {
  const char* path = std::getenv("MUSTER_FAKE_NCCL_LOG");
  if (path == nullptr) return;
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const std::string line = std::string(word) + "\n";
  if (fd >= 0 && ::write(fd, line.data(), line.size()) < 0) std::perror("fake nccl log");
  if (fd >= 0) ::close(fd);
}

std::string path_of(const UniqueId& id) {
  return std::string("/dev/shm/muster-fake-nccl-") + id.bytes;
}

}  // namespace

namespace muster::nccl {

struct OpaqueComm {
  Segment* segment = nullptr;
  std::string path;
  int rank = 0, world = 1;
  long in_progress = 0, hang_at = 0, error_at = 0, refuse_at = 0;
  bool init_hangs = false;
  long remaining_in_progress = 0;
  long calls = 0;
  bool is_up = false;
  std::uint32_t round = 0;  // of the stream's thread
  std::atomic<bool> stopped{false};
  std::atomic<int> async_error{kSuccess};
  std::atomic<int> running{0};
  std::atomic<int> graphs{0};  // captured collectives whose graph has not been destroyed
  bool deaf = false, is_finalizing = false, is_revoked = false;

  Status answer() {
    if (in_progress == 0) return kSuccess;
    remaining_in_progress = in_progress;
    return kInProgress;
  }
};

}  // namespace muster::nccl

namespace {

std::mutex live_mutex;
std::set<OpaqueComm*> live_comms;

/// Ends the process where the real NCCL would use freed memory.
void check_live(OpaqueComm* comm, const char* who) {
  const std::lock_guard lock(live_mutex);
  if (live_comms.contains(comm)) return;
  std::fprintf(stderr, "fake NCCL: %s after its communicator was freed\n", who);
  std::abort();
}

bool is_alive(int pid) {
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return false;
  pollfd poll_fd{fd, POLLIN, 0};
  const bool exited = ::poll(&poll_fd, 1, 0) > 0;  // also true of a zombie
  ::close(fd);
  return !exited;
}

/// Waits for what `peer` does. False when the communicator was stopped or lost the peer meanwhile.
template <class Done>
bool wait_for(OpaqueComm& comm, int peer, Done done) {
  for (unsigned spins = 0; !done(); ++spins) {
    if (comm.stopped) return false;
    if (spins % 256 == 255 && !comm.deaf && !is_alive(comm.segment->pid[peer])) {
      if (done()) break;  // its last words may have come in between
      comm.async_error = kRemoteError;
      while (!comm.stopped) ::usleep(200);  // the kernel that waits for a lost peer
      return false;
    }
    ::sched_yield();
  }
  return true;
}

bool meet(OpaqueComm& comm) {
  const std::uint32_t round = ++comm.round;
  comm.segment->arrived[comm.rank].store(round, std::memory_order_release);
  for (int peer = 0; peer < comm.world; ++peer)
    if (!wait_for(comm, peer,
                  [&] { return comm.segment->arrived[peer].load(std::memory_order_acquire) >= round; }))
      return false;
  return true;
}

std::size_t size_of_type(DataType type) {
  switch (type) {
    case kInt64:
    case kFloat64:
      return 8;
    case kInt32:
    case kFloat32:
      return 4;
    case kFloat16:
    case kBfloat16:
      return 2;
    case kUint8:
      break;
  }
  return 1;
}

template <class T>
void reduce_slots(const OpaqueComm& comm, ReduceKind kind, std::size_t count, void* out) {
  auto* result = static_cast<T*>(out);
  for (std::size_t i = 0; i < count; ++i) {
    // ncclAvg multiplies first.
    const T scale = kind == kAvg ? T{1} / static_cast<T>(comm.world) : T{1};
    T value = static_cast<T>(reinterpret_cast<const T*>(comm.segment->slot[0])[i] * scale);
    for (int rank = 1; rank < comm.world; ++rank) {
      const T other = static_cast<T>(reinterpret_cast<const T*>(comm.segment->slot[rank])[i] * scale);
      if (kind == kMax)
        value = std::max(value, other);
      else if (kind == kMin)
        value = std::min(value, other);
      else if (kind == kProduct)
        value = static_cast<T>(value * other);
      else
        value = static_cast<T>(value + other);
    }
    result[i] = value;
  }
}

void reduce(const OpaqueComm& comm, DataType type, ReduceKind kind, std::size_t count, void* out) {
  if (type == kFloat32) reduce_slots<float>(comm, kind, count, out);
  if (type == kFloat64) reduce_slots<double>(comm, kind, count, out);
  if (type == kInt32) reduce_slots<std::int32_t>(comm, kind, count, out);
  if (type == kInt64) reduce_slots<std::int64_t>(comm, kind, count, out);
  if (type == kUint8) reduce_slots<unsigned char>(comm, kind, count, out);
}

/// Puts a call on the stream: `chunks(comm)` moves the data.
template <class Chunks>
Status enqueue(OpaqueComm* comm, void* stream, Chunks chunks) {
  if (comm->async_error != kSuccess) return static_cast<Status>(comm->async_error.load());
  ++comm->calls;
  if (comm->calls == comm->refuse_at) {
    comm->async_error = kInvalidArgument;
    return kInvalidArgument;
  }
  const bool hangs = comm->calls == comm->hang_at, fails = comm->calls == comm->error_at;
  auto* host = static_cast<HostStream*>(stream);
  const bool captured = host->is_capturing();
  if (captured) {
    ++comm->graphs;
    host->at_end_of_graph([comm] {
      check_live(comm, "a graph was destroyed");
      --comm->graphs;
    });
  } else {
    ++comm->running;
  }
  host->enqueue([=] {
    if (captured) {
      check_live(comm, "a captured collective ran");
      ++comm->running;
    }
    if (fails) comm->async_error = kRemoteError;
    while ((hangs || fails) && !comm->stopped) ::usleep(200);
    chunks(*comm);
    --comm->running;
  });
  return comm->answer();
}

/// A collective: `output(offset, count)` runs between two meetings, for each part that fits a slot.
template <class Input, class Output>
Status enqueue(OpaqueComm* comm, void* stream, std::size_t count, std::size_t element, Input input,
               Output output) {
  return enqueue(comm, stream, [=](OpaqueComm& live) {
    const std::size_t part = kSlotBytes / element;
    for (std::size_t offset = 0; offset < count && !live.stopped; offset += part) {
      const std::size_t here = std::min(part, count - offset);
      std::memcpy(live.segment->slot[live.rank], input(offset), here * element);
      if (!meet(live)) break;
      output(offset, here);
      if (!meet(live)) break;
    }
  });
}

/// One side of a transfer, chunk by chunk.
Status enqueue_transfer(OpaqueComm* comm, void* stream, char* data, std::size_t size, int peer, bool sends) {
  return enqueue(comm, stream, [=](OpaqueComm& live) {
    Mailbox& mail = sends ? live.segment->mail[live.rank][peer] : live.segment->mail[peer][live.rank];
    for (std::size_t offset = 0; offset < size; offset += kMailBytes) {
      if (!wait_for(live, peer, [&] { return (mail.filled == mail.taken) == sends; })) break;
      const std::size_t here = std::min(kMailBytes, size - offset);
      std::memcpy(sends ? static_cast<void*>(mail.bytes) : data + offset,
                  sends ? data + offset : static_cast<void*>(mail.bytes), here);
      ++(sends ? mail.filled : mail.taken);
    }
  });
}

void release(OpaqueComm* comm) {
  while (comm->running > 0 || (comm->graphs > 0 && !comm->is_revoked)) ::usleep(200);
  {
    const std::lock_guard lock(live_mutex);
    live_comms.erase(comm);
  }
  ::munmap(comm->segment, sizeof(Segment));
  ::unlink(comm->path.c_str());
  delete comm;
}

}  // namespace

#define FAKE_NCCL_API extern "C" __attribute__((visibility("default")))

FAKE_NCCL_API Status ncclGetVersion(int* version) {
#ifdef FAKE_NCCL_OLD
  *version = 21803;
#else
  *version = 22809;
#endif
  return kSuccess;
}

FAKE_NCCL_API Status ncclGetUniqueId(UniqueId* id) {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random) return kSystemError;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->bytes, sizeof id->bytes, "%016llx", static_cast<unsigned long long>(random));
  return kSuccess;
}

FAKE_NCCL_API Status ncclCommInitRankConfig(Comm* out, int world, UniqueId id, int rank, Config* config) {
  if (config == nullptr || config->magic != 0xcafebeef || config->size != sizeof(Config) ||
      config->blocking != 0)
    return kInvalidArgument;
  if (world < 1 || world > kMaxRanks || rank < 0 || rank >= world) return kInvalidArgument;
  auto comm = std::make_unique<OpaqueComm>();
  comm->rank = rank;
  comm->world = world;
  comm->in_progress = from_environment("MUSTER_FAKE_NCCL_IN_PROGRESS");
  comm->hang_at = from_environment("MUSTER_FAKE_NCCL_HANG_AT");
  comm->error_at = from_environment("MUSTER_FAKE_NCCL_ERROR_AT");
  comm->refuse_at = from_environment("MUSTER_FAKE_NCCL_REFUSE_AT");
  comm->deaf = from_environment("MUSTER_FAKE_NCCL_DEAF") != 0;
  comm->init_hangs = from_environment("MUSTER_FAKE_NCCL_INIT_HANG") != 0;
  comm->path = path_of(id);
  const int fd = ::open(comm->path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ::ftruncate(fd, sizeof(Segment)) != 0) return kSystemError;
  void* memory = ::mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory == MAP_FAILED) return kSystemError;
  comm->segment = static_cast<Segment*>(memory);
  comm->segment->pid[rank] = ::getpid();
  comm->segment->joined.fetch_add(1);
  comm->remaining_in_progress = comm->in_progress;
  {
    const std::lock_guard lock(live_mutex);
    live_comms.insert(comm.get());
  }
  *out = comm.release();
  return kInProgress;  // as the real one with blocking = 0
}

FAKE_NCCL_API Status ncclCommGetAsyncError(Comm comm, Status* status) {
  if (!comm->is_up) {
    *status = kInProgress;
    if (comm->init_hangs || comm->segment->joined < comm->world || comm->remaining_in_progress-- > 0)
      return kSuccess;
    comm->is_up = true;
  }
  if (comm->async_error != kSuccess)
    *status = static_cast<Status>(comm->async_error.load());
  else if (comm->is_finalizing && (comm->running > 0 || comm->graphs > 0))
    *status = kInProgress;
  else
    *status = comm->remaining_in_progress-- > 0 ? kInProgress : kSuccess;
  return kSuccess;
}

FAKE_NCCL_API Status ncclCommFinalize(Comm comm) {
  log_call("finalize");
  comm->is_finalizing = true;
  (void)comm->answer();
  return kInProgress;
}

FAKE_NCCL_API Status ncclCommDestroy(Comm comm) {
  log_call("destroy");
  release(comm);
  return kSuccess;
}

FAKE_NCCL_API Status ncclCommAbort(Comm comm) {
  log_call("abort");
  comm->stopped = true;
  release(comm);
  return kSuccess;
}

FAKE_NCCL_API const char* ncclGetErrorString(Status status) {
  switch (status) {
    case kRemoteError:
      return "remote process exited or there was a network error";
    case kInvalidArgument:
      return "invalid argument";
    default:
      return "fake error";
  }
}

FAKE_NCCL_API const char* ncclGetLastError(Comm comm) {
  return comm != nullptr && comm->async_error != kSuccess ? "fake: connection closed\nby peer" : "";
}

FAKE_NCCL_API Status ncclAllReduce(const void* send, void* receive, std::size_t count, DataType type,
                                   ReduceKind kind, Comm comm, void* stream) {
  const std::size_t element = size_of_type(type);
  return enqueue(
      comm, stream, count, element,
      [=](std::size_t offset) { return static_cast<const char*>(send) + offset * element; },
      [=](std::size_t offset, std::size_t here) {
        reduce(*comm, type, kind, here, static_cast<char*>(receive) + offset * element);
      });
}

FAKE_NCCL_API Status ncclBroadcast(const void* send, void* receive, std::size_t count, DataType type,
                                   int root, Comm comm, void* stream) {
  const std::size_t element = size_of_type(type);
  return enqueue(
      comm, stream, count, element,
      [=](std::size_t offset) { return static_cast<const char*>(send) + offset * element; },
      [=](std::size_t offset, std::size_t here) {
        std::memcpy(static_cast<char*>(receive) + offset * element, comm->segment->slot[root],
                    here * element);
      });
}

FAKE_NCCL_API Status ncclAllGather(const void* send, void* receive, std::size_t count, DataType type,
                                   Comm comm, void* stream) {
  const std::size_t element = size_of_type(type);
  return enqueue(
      comm, stream, count, element,
      [=](std::size_t offset) { return static_cast<const char*>(send) + offset * element; },
      [=](std::size_t offset, std::size_t here) {
        for (int rank = 0; rank < comm->world; ++rank)
          std::memcpy(
              static_cast<char*>(receive) + (static_cast<std::size_t>(rank) * count + offset) * element,
              comm->segment->slot[rank], here * element);
      });
}

FAKE_NCCL_API Status ncclReduceScatter(const void* send, void* receive, std::size_t count, DataType type,
                                       ReduceKind kind, Comm comm, void* stream) {
  const std::size_t element = size_of_type(type);
  const std::size_t all = count * static_cast<std::size_t>(comm->world);
  const std::size_t mine = count * static_cast<std::size_t>(comm->rank);
  auto scratch = std::make_shared<std::vector<char>>(all * element);
  return enqueue(
      comm, stream, all, element,
      [=](std::size_t offset) { return static_cast<const char*>(send) + offset * element; },
      [=](std::size_t offset, std::size_t here) {
        reduce(*comm, type, kind, here, scratch->data() + offset * element);
        if (offset + here == all) std::memcpy(receive, scratch->data() + mine * element, count * element);
      });
}

FAKE_NCCL_API Status ncclReduce(const void* send, void* receive, std::size_t count, DataType type,
                                ReduceKind kind, int root, Comm comm, void* stream) {
  const std::size_t element = size_of_type(type);
  return enqueue(
      comm, stream, count, element,
      [=](std::size_t offset) { return static_cast<const char*>(send) + offset * element; },
      [=](std::size_t offset, std::size_t here) {
        if (comm->rank == root)
          reduce(*comm, type, kind, here, static_cast<char*>(receive) + offset * element);
      });
}

FAKE_NCCL_API Status ncclSend(const void* send, std::size_t count, DataType type, int peer, Comm comm,
                              void* stream) {
  return enqueue_transfer(comm, stream, static_cast<char*>(const_cast<void*>(send)),
                          count * size_of_type(type), peer, true);
}

FAKE_NCCL_API Status ncclRecv(void* receive, std::size_t count, DataType type, int peer, Comm comm,
                              void* stream) {
  return enqueue_transfer(comm, stream, static_cast<char*>(receive), count * size_of_type(type), peer, false);
}

#ifndef FAKE_NCCL_OLD
FAKE_NCCL_API Status ncclCommRevoke(Comm comm, int flags) {
  if (flags != 0) return kInvalidArgument;
  log_call("revoke");
  if (comm->is_finalizing || comm->is_revoked) return kInvalidArgument;
  comm->is_revoked = true;
  comm->stopped = true;
  while (comm->running > 0) ::usleep(200);
  comm->stopped = false;
  comm->async_error = kSuccess;
  return comm->answer();
}

FAKE_NCCL_API Status ncclMemAlloc(void** memory, std::size_t size_bytes) {
  *memory = std::malloc(size_bytes);
  if (*memory != nullptr) std::memset(*memory, 0xff, size_bytes);  // not zeroed, as the real one
  return *memory != nullptr ? kSuccess : kSystemError;
}

FAKE_NCCL_API Status ncclMemFree(void* memory) {
  std::free(memory);
  return kSuccess;
}
#endif
