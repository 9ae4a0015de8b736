// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/nccl/nccl_group.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <utility>
#include <vector>

#include "worker_runtime/groups/base/collective.h"
#include "worker_runtime/groups/base/meeting.h"
#include "worker_runtime/groups/nccl/nccl_comm_thread.h"

namespace muster {
namespace nccl {
namespace {

// The first byte of the value under an id's key: what follows is the id, or why rank 0 could not make one.
constexpr char kHasId = '+';
constexpr char kHasError = '!';

DataType type_of(DType dtype) {
  constexpr std::array kTypes{kFloat32, kFloat64, kFloat16, kBfloat16, kInt32, kInt64, kUint8};
  return kTypes.at(static_cast<std::size_t>(dtype));
}

ReduceKind kind_of(ReduceOp op) {
  constexpr std::array kKinds{kSum, kAvg, kMin, kMax, kProduct};
  return kKinds.at(static_cast<std::size_t>(op));
}

/// The n-th group that these ranks make: every rank counts its own, and as making one is a collective they
/// agree.
Result<std::int64_t> count_group(Store& store, int rank) {
  return store.add("nccl/groups_of_rank/" + std::to_string(rank), 1);
}

/// The processes of this host, so that the rank which ends is known and named.
Result<groups::PeerWatch> exchange_pids(Store& store, const GroupSettings& settings, std::int64_t sequence) {
  const auto exchange = groups::exchange_through_store(store, "nccl/pids/" + std::to_string(sequence),
                                                       groups::all_ranks(settings.world_size), settings.rank,
                                                       SteadyClock::now() + settings.timeout);
  // A pid means something to who sees the same processes.
  const std::string here =
      groups::host_id(current_environment()) + " " + std::to_string(groups::pid_namespace_inode()) + " ";
  MUSTER_TRY(const auto texts, exchange(here + std::to_string(::getpid())));
  groups::PeerWatch peers;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    pid_t pid = 0;
    const char* const end = texts[rank].data() + texts[rank].size();
    if (static_cast<int>(rank) != settings.rank && texts[rank].starts_with(here) &&
        std::from_chars(texts[rank].data() + here.size(), end, pid).ptr == end && pid > 1)
      peers.add(static_cast<int>(rank), pid);
  }
  return peers;
}

Result<UniqueId> exchange_id(Store& store, const GroupSettings& settings, const NcclApi& api,
                             std::int64_t sequence) {
  const std::string rank = std::to_string(settings.rank);
  const std::string key = "nccl/id/" + std::to_string(sequence);
  UniqueId id{};
  if (settings.rank == 0) {
    const Status status = api.get_unique_id(&id);
    std::string value(1, kHasId);
    if (status == kSuccess)
      value.append(id.bytes, sizeof id.bytes);
    else
      value = kHasError + ("rank 0: ncclGetUniqueId: " + api.describe(status, nullptr));
    MUSTER_OK(store.set(key, value));
    if (status != kSuccess) return fail(ErrorCode::kFailed, value.substr(1));
    return id;
  }
  const auto value = store.get(key, settings.timeout);
  if (!value) return fail("rank " + rank + ": wait for NCCL's id of rank 0 under " + key, value.error());
  if (!value->empty() && value->front() == kHasError) return fail(ErrorCode::kFailed, value->substr(1));
  if (value->size() != sizeof id.bytes + 1 || value->front() != kHasId)
    return fail(ErrorCode::kProtocol, "rank " + rank + ": " + key + " holds " +
                                          std::to_string(value->size()) +
                                          " bytes that are no NCCL id; is another program using this store?");
  std::memcpy(id.bytes, value->data() + 1, sizeof id.bytes);
  return id;
}

class NcclGroup final : public ProcessGroup {
 public:
  NcclGroup(const NcclApi& api, const GroupSettings& settings, std::shared_ptr<NcclDevice> device,
            void* stream)
      : api_(api),
        settings_(settings),
        device_(std::move(device)),
        stream_(stream),
        events_(std::make_shared<EventPool>(device_)) {}

  ~NcclGroup() override {
    thread_.reset();  // ends the communicator before its memory goes
    // ncclMemFree unmaps without waiting (NCCL 2.28.9, src/allocator.cc), unlike cudaFree.
    if (!blocks_.empty()) (void)device_->synchronize(stream_);
    if (barrier_word_ != nullptr) device_->free(barrier_word_);
    for (const auto& [memory, is_nccl] : blocks_)
      if (is_nccl)
        (void)api_.mem_free(memory);
      else
        device_->free(memory);
  }

  Result<void> start(const UniqueId& id, groups::PeerWatch peers) {
    MUSTER_TRY(barrier_word_, device_->allocate(sizeof(std::int32_t)));
    NcclCommThread::Options options;
    options.rank = settings_.rank;
    options.world_size = settings_.world_size;
    options.id = id;
    options.limits.start = options.limits.call = settings_.timeout;
    options.limits.captured = std::min(settings_.timeout, settings_.captured_timeout);
    options.peers = std::move(peers);
    options.record = CollectiveRecord(settings_.name.page, settings_.name.text, "nccl", settings_.world_size);
    thread_ = std::make_shared<NcclCommThread>(api_, device_, std::move(options));
    return thread_->wait_started();
  }

  int rank() const override { return settings_.rank; }
  int world_size() const override { return settings_.world_size; }
  std::string_view backend() const override { return "nccl"; }
  DeviceType device() const override { return DeviceType::kCuda; }
  Result<void> status() const override {
    if (const auto failure = thread_->failure()) return fail(*failure);
    return {};
  }

  Result<void> all_reduce(Buffer buffer, ReduceOp op) override {
    MUSTER_TRY(auto work, start_all_reduce(buffer, op));
    return work->wait();
  }

  Result<std::unique_ptr<Work>> start_all_reduce(Buffer buffer, ReduceOp op) override {
    MUSTER_TRY(auto made, make(groups::describe_all_reduce(buffer, op), buffer.data, buffer));
    return submit(std::move(made));
  }

  Result<void> broadcast(Buffer buffer, int root) override {
    return run(make(groups::describe_broadcast(buffer, root, settings_.world_size), buffer.data, buffer));
  }

  Result<void> all_gather(ConstBuffer input, Buffer output) override {
    return run(make(groups::describe_all_gather(input, output, settings_.world_size), input.data,
                    {output.data, input.count, input.dtype}));
  }

  Result<void> reduce_scatter(ConstBuffer input, Buffer output, ReduceOp op) override {
    return run(
        make(groups::describe_reduce_scatter(input, output, op, settings_.world_size), input.data, output));
  }

  Result<void> barrier() override {
    MUSTER_TRY(auto made, make(groups::OpDescriptor{}, barrier_word_, {barrier_word_, 1, DType::kInt32}));
    if (made->captured)
      return fail(ErrorCode::kInvalidArgument,
                  "rank " + std::to_string(settings_.rank) + ": a barrier cannot be part of a captured step");
    MUSTER_OK(hand_over(made));
    return thread_->wait_finished(*made);
  }

  Result<void*> allocate(std::size_t size_bytes) override {
    if (const auto failure = thread_->failure()) return fail(*failure);
    MUSTER_OK(device_->select());
    const std::size_t bytes = size_bytes == 0 ? 64 : size_bytes;
    void* memory = nullptr;
    const bool is_nccl =
        api_.mem_alloc != nullptr && !settings_.shares_gpu && api_.mem_alloc(&memory, bytes) == kSuccess;
    if (is_nccl) {
      blocks_.emplace_back(memory, true);
      MUSTER_OK(device_->zero(memory, bytes));
      return memory;
    }
    MUSTER_TRY(memory, device_->allocate(bytes));
    blocks_.emplace_back(memory, false);
    return memory;
  }

 private:
  /// Makes the compute stream wait for the collective. Outlives the group's thread at need.
  class NcclWork final : public Work {
   public:
    NcclWork(std::shared_ptr<NcclCommThread> thread, std::shared_ptr<NcclDevice> device, void* stream,
             std::shared_ptr<Collective> collective)
        : thread_(std::move(thread)),
          device_(std::move(device)),
          stream_(stream),
          collective_(std::move(collective)) {}
    ~NcclWork() override {
      if (!is_waited_) (void)wait();
    }
    Result<void> wait() override {
      if (std::exchange(is_waited_, true)) return {};
      MUSTER_OK(thread_->wait_issued(*collective_));
      return device_->make_wait(stream_, collective_->done);
    }

   private:
    std::shared_ptr<NcclCommThread> thread_;
    std::shared_ptr<NcclDevice> device_;
    void* stream_;
    std::shared_ptr<Collective> collective_;
    bool is_waited_ = false;
  };

  /// `output`: with the number of elements as NCCL counts for this kind.
  Result<std::shared_ptr<Collective>> make(const Result<groups::OpDescriptor>& checked, const void* input,
                                           Buffer output) {
    if (!checked) return fail("rank " + std::to_string(settings_.rank), checked.error());
    if (const auto failure = thread_->failure()) return fail(*failure);
    MUSTER_OK(device_->select());
    auto made = std::make_shared<Collective>();
    made->send = input;
    made->receive = output.data;
    made->operation = groups::page_operation(checked->kind);
    made->pool = events_;
    made->count = output.count;
    made->type = type_of(output.dtype);
    made->reduce = kind_of(checked->reduce);
    made->root = checked->root;
    made->sequence = ++sequence_;
    made->size_bytes = checked->kind == groups::OpKind::kBarrier ? 0 : output.size_bytes();
    made->name = std::string(kPageOperations.at(static_cast<std::size_t>(made->operation))) + " #" +
                 std::to_string(sequence_) + " of " + std::to_string(output.count) + " " +
                 std::string(to_string(output.dtype));
    MUSTER_TRY(made->captured, device_->is_capturing(stream_));
    return made;
  }

  /// Marks where the inputs are ready and gives the collective to the comm thread.
  Result<void> hand_over(const std::shared_ptr<Collective>& made) {
    MUSTER_TRY(made->ready, events_->take());
    MUSTER_TRY(made->done, events_->take());
    MUSTER_OK(device_->record(made->ready, stream_));
    return thread_->submit(made);
  }

  Result<std::unique_ptr<Work>> submit(std::shared_ptr<Collective> made) {
    MUSTER_OK(hand_over(made));
    // Graphs are not synchronized: while the comm thread adds to the one that is being captured, this thread
    // must not.
    if (made->captured) MUSTER_OK(thread_->wait_issued(*made));
    return std::make_unique<NcclWork>(thread_, device_, stream_, std::move(made));
  }

  Result<void> run(Result<std::shared_ptr<Collective>> made) {
    if (!made) return fail(std::move(made).error());
    MUSTER_TRY(auto work, submit(*std::move(made)));
    return work->wait();
  }

  const NcclApi api_;
  const GroupSettings settings_;
  const std::shared_ptr<NcclDevice> device_;
  void* const stream_;  // the compute stream; not owned
  const std::shared_ptr<EventPool> events_;
  std::shared_ptr<NcclCommThread> thread_;
  std::vector<std::pair<void*, bool>> blocks_;  // memory, from NCCL's allocator?
  void* barrier_word_ = nullptr;
  std::uint64_t sequence_ = 0;
};

}  // namespace

Result<std::unique_ptr<ProcessGroup>> make_group(Store& store, const GroupSettings& settings,
                                                 std::shared_ptr<NcclDevice> device, void* stream) {
  MUSTER_OK(device->select());
  const auto come = [&](PageMark mark) {
    if (settings.name.tells_start) muster::mark(settings.name.page, mark);
  };
  MUSTER_TRY(const NcclApi api, NcclApi::load(settings.library));
  come(PageMark::kNcclLoaded);
  MUSTER_TRY(const std::int64_t sequence, count_group(store, settings.rank));
  MUSTER_TRY(const UniqueId id, exchange_id(store, settings, api, sequence));
  MUSTER_TRY(groups::PeerWatch peers, exchange_pids(store, settings, sequence));
  come(PageMark::kNcclIdKnown);
  auto group = std::make_unique<NcclGroup>(api, settings, std::move(device), stream);
  MUSTER_OK(group->start(id, std::move(peers)));
  return group;
}

}  // namespace nccl

namespace {

std::optional<std::string> library_of_environment() {
  const char* library = std::getenv("MUSTER_NCCL_LIBRARY");
  return library != nullptr && *library != '\0' ? std::optional<std::string>(library) : std::nullopt;
}

}  // namespace

#ifndef MUSTER_HAS_CUDA
Result<std::unique_ptr<nccl::NcclDevice>> nccl::make_cuda_device(int index) {
  return fail(ErrorCode::kUnsupported,
              "NCCL on GPU " + std::to_string(index) +
                  ": this build has no CUDA; use a CPU backend, or build where nvcc is on PATH");
}
#endif

Result<void> check_nccl_library() {
  MUSTER_OK(nccl::NcclApi::load(library_of_environment()));
  return {};
}

Result<std::unique_ptr<ProcessGroup>> make_nccl_group(Store& store, int rank, int world_size, int device,
                                                      void* stream, std::chrono::milliseconds timeout,
                                                      const GroupName& name) {
  MUSTER_TRY(std::shared_ptr<nccl::NcclDevice> gpu, nccl::make_cuda_device(device));
  nccl::GroupSettings settings;
  settings.rank = rank;
  settings.world_size = world_size;
  settings.timeout = timeout;
  settings.captured_timeout = std::max(settings.captured_timeout, timeout / 5);
  settings.name = name;
  settings.library = library_of_environment();
  const char* host_id = std::getenv("NCCL_HOSTID");
  settings.shares_gpu = host_id != nullptr && *host_id != '\0';
  return nccl::make_group(store, settings, std::move(gpu), stream);
}

}  // namespace muster
