// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/nccl/nccl_group.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <muster/init.h>

#include "rendezvous/base/env.h"
#include "rendezvous/base/fail.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/groups/base/collective.h"
#include "worker_runtime/groups/base/meeting.h"
#include "worker_runtime/groups/nccl/nccl_api.h"
#include "worker_runtime/groups/nccl/nccl_lifecycle.h"

namespace muster {
namespace nccl {

Result<NcclApi> NcclApi::load(const std::optional<std::string>& path) {
  SharedLibrary::Request request{"NCCL", cuda_candidates("libnccl.so.2"),
                                 "install libnccl2, or name the library in MUSTER_NCCL_LIBRARY"};
  if (path) request.candidates = {*path};
  MUSTER_TRY(const SharedLibrary library, SharedLibrary::open(request));
  NcclApi api;
  MUSTER_OK(library.load(api.get_version, "ncclGetVersion"));
  if (api.get_version(&api.version) != kSuccess || api.version < kOldestVersion)
    return fail(ErrorCode::kUnsupported,
                "load NCCL: {} is version {}, muster needs 2.18 or newer; install a newer libnccl2",
                library.path(), api.version_text());
  MUSTER_OK(library.load(
      api.get_unique_id, "ncclGetUniqueId", api.comm_init_rank_config, "ncclCommInitRankConfig",
      api.comm_finalize, "ncclCommFinalize", api.comm_destroy, "ncclCommDestroy", api.comm_abort,
      "ncclCommAbort", api.comm_get_async_error, "ncclCommGetAsyncError", api.get_error_string,
      "ncclGetErrorString", api.get_last_error, "ncclGetLastError", api.all_reduce, "ncclAllReduce",
      api.broadcast, "ncclBroadcast", api.all_gather, "ncclAllGather", api.reduce_scatter,
      "ncclReduceScatter", api.reduce, "ncclReduce", api.send, "ncclSend", api.recv, "ncclRecv"));
  library.load_optional(api.mem_alloc, "ncclMemAlloc");
  library.load_optional(api.mem_free, "ncclMemFree");
  if (api.mem_free == nullptr) api.mem_alloc = nullptr;
  return api;
}

std::string NcclApi::describe(Status status, Comm comm) const {
  std::string text = fmt::format("{} ({})", get_error_string(status), static_cast<int>(status));
  if (const char* last = get_last_error(comm); last != nullptr && *last != '\0') {
    text += fmt::format(": {}", last);
    std::replace(text.begin(), text.end(), '\n', ' ');  // one line per error
  }
  return text;
}

namespace {

/// One collective on its way. Its events go with it: where launches are to cost little, steps are captured,
/// and a replay makes none.
struct Collective {
  enum class State { kQueued, kIssued, kFinished };

  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;  // as NCCL counts for this kind
  DataType type = kFloat32;
  ReduceKind reduce = kSum;
  int root = -1;  // of those that have one; the other rank of a send or recv
  PageOperation operation = PageOperation::kAllReduce;
  std::uint64_t sequence = 0;
  std::uint64_t order = 0;  // among all of this rank: a send has the sequence of the collective after it
  std::uint64_t size_bytes = 0;
  std::string name;       // "all_reduce #5 of 1024 F32"
  bool captured = false;  // becomes part of a CUDA graph: its events may not be queried
  void* ready = nullptr;  // on the compute stream: inputs are there
  void* done = nullptr;   // on the comm stream: outputs are there
  State state = State::kQueued;
  Instant issued_at{};
  std::shared_ptr<NcclDevice> device;

  explicit Collective(std::shared_ptr<NcclDevice> of) : device(std::move(of)) {}
  Collective& operator=(Collective&&) = delete;  // nor copied
  ~Collective() {
    for (void* const event : {ready, done})
      if (event != nullptr) device->destroy_event(event);
  }
};

// Events are asked often while somebody waits, seldom otherwise.
constexpr std::chrono::microseconds kFinishPause{100};
constexpr Millis kWatchPause{100};
// What a rank that ended had sent may still be on its way: only a collective that does not move for this long
// waits in vain.
constexpr Millis kPeerGrace{500};
// What a caller waits beyond the comm thread's own deadlines before it declares that thread stuck.
constexpr Millis kMargin{5'000};
constexpr int kExitSoftware = 70;

ErrorCode code_of(const Lifecycle& state) {
  if (state.cause == Cause::kTimeout) return ErrorCode::kTimeout;
  const bool is_of_peer =
      state.cause == Cause::kPeerEnded || state.status == kRemoteError || state.status == kSystemError;
  return is_of_peer ? ErrorCode::kPeerGone : ErrorCode::kFailed;
}

/// NcclCommThread: the ONE thread that owns a communicator. Every call on it (start, collectives, questions,
/// abort, destroy) is made here, because NCCL allows an abort only while no other thread is inside a call on
/// the communicator. It is also the watchdog: a collective that does not finish within the limit, one that
/// waits for a process of this host that has ended (which NCCL's transports within a host do not notice), or
/// an asynchronous error ends the communicator and leaves a sticky error that names rank, operation and
/// sequence number. Used by NcclGroup's thread only: submit(), wait_issued() and wait_finished() are its
/// whole traffic.
class NcclCommThread {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    UniqueId id{};
    Limits limits;
    groups::PeerWatch peers = {};  // the other ranks of this host
    CollectiveRecord record = {};  // of the oldest collective that the GPU has not finished
  };

  NcclCommThread(const NcclApi& api, std::shared_ptr<NcclDevice> device, Options options)
      : api_(api), device_(std::move(device)), options_(std::move(options)), thread_([this] { run(); }) {}

  /// Ends the communicator cleanly if it is healthy. A library that does not return within its deadlines ends
  /// the process with exit code 70 and a line on stderr: a thread inside it can be neither joined nor
  /// abandoned.
  ~NcclCommThread() { stop(); }
  void stop() {
    {
      std::unique_lock lock(mutex_);
      stopping_ = true;
      to_thread_.notify_one();
      const Limits& limits = options_.limits;
      Millis longest = limits.finalize + kMargin;
      if (!failure_) longest += limits.start + limits.call;  // what is queued is still issued
      // Until here every wait of the thread has a deadline of its own; only a call that does not return
      // passes this one.
      if (!to_users_.wait_for(lock, longest, [this] { return over_; })) {
        std::fprintf(stderr,
                     "muster: rank %d: NCCL %s does not return from ending its communicator (last operation: "
                     "%s); it waits for CUDA graphs with captured collectives, which must be destroyed "
                     "before their group; exiting\n",
                     options_.rank, api_.version_text().c_str(), last_name_.c_str());
        std::fflush(stderr);
        ::_exit(kExitSoftware);
      }
    }
    if (thread_.joinable()) thread_.join();
  }

  /// Blocks until every rank has joined.
  [[nodiscard]] Result<void> wait_started() {
    return wait_for([this] { return started_; }, "start");
  }

  [[nodiscard]] Result<void> submit(std::shared_ptr<Collective> collective) {
    const std::lock_guard lock(mutex_);
    if (failure_) return fail(*failure_);
    queue_.push_back(std::move(collective));
    to_thread_.notify_one();
    return {};
  }

  /// Blocks until the collective is on the comm stream (microseconds, unless NCCL still connects).
  [[nodiscard]] Result<void> wait_issued(const Collective& collective) {
    return wait_for([&] { return collective.state != Collective::State::kQueued; }, collective.name);
  }

  /// Blocks until the GPU has finished it.
  [[nodiscard]] Result<void> wait_finished(const Collective& collective) {
    MUSTER_OK(wait_issued(collective));
    {
      const std::lock_guard lock(mutex_);
      ++finish_waiters_;
      to_thread_.notify_one();
    }
    auto result = wait_for([&] { return collective.state == Collective::State::kFinished; }, collective.name);
    const std::lock_guard lock(mutex_);
    --finish_waiters_;
    return result;
  }

  /// The sticky error, if the communicator has failed.
  [[nodiscard]] std::optional<Error> failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  void run() {
    start_communicator();
    while (true) {
      std::shared_ptr<Collective> next;
      {
        std::unique_lock lock(mutex_);
        const auto has_news = [this] { return stopping_ || !queue_.empty(); };
        if (finish_waiters_ > 0 && !outstanding_.empty())
          to_thread_.wait_for(lock, kFinishPause, has_news);
        else if (lifecycle_.phase == Phase::kReady && (!outstanding_.empty() || has_captured_))
          to_thread_.wait_for(lock, kWatchPause, [&] { return has_news() || finish_waiters_ > 0; });
        else
          to_thread_.wait(lock, has_news);
        if (!queue_.empty()) {
          next = std::move(queue_.front());
          queue_.pop_front();
        } else if (stopping_) {
          break;
        }
      }
      // One by one, although several may be queued: NCCL sorts the collectives of an ncclGroup by size, and
      // chooses algorithm, protocol and channels for those of similar size together (ncclPrepareTasks in NCCL
      // 2.28.9's src/enqueue.cc). All ranks would have to form the same groups, and what is queued here is a
      // matter of each rank's timing. A group also starts only when the inputs of its last collective are
      // ready: the first buckets of a backward pass would no longer overlap with it.
      if (next) issue(next);
      watch();
    }
    // Finalize waits for the collectives that are still running; those of a failed communicator were aborted.
    if (lifecycle_.phase == Phase::kReady) (void)drive(Event::kStop, kSuccess, "end after " + last_name_);
    outstanding_.clear();
    if (stream_ != nullptr) device_->destroy_stream(stream_);
    if (captured_begun_ != nullptr) device_->destroy_counter(captured_begun_);
    if (captured_finished_ != nullptr) device_->destroy_counter(captured_finished_);
    const std::lock_guard lock(mutex_);
    over_ = true;
    to_users_.notify_all();
  }

  void start_communicator() {
    const auto prepare = [this]() -> Result<void> {
      MUSTER_OK(device_->select());
      MUSTER_TRY(stream_, device_->create_stream());
      MUSTER_TRY(captured_begun_, device_->create_counter());
      MUSTER_TRY(captured_finished_, device_->create_counter());
      return {};
    };
    if (auto prepared = prepare(); !prepared) {
      lifecycle_.phase = Phase::kFailed;
      return set_failure({prepared.error().code, fmt::format("rank {}: start of NCCL: {}", options_.rank,
                                                             prepared.error().message)});
    }
    Config config;
    config.blocking = 0;
    lifecycle_ = starting(options_.limits, SteadyClock::now());
    const Status status =
        api_.comm_init_rank_config(&comm_, options_.world_size, options_.id, options_.rank, &config);
    if (drive(Event::kAnswer, status, "start") != Action::kProceed) return;
    const std::lock_guard lock(mutex_);
    started_ = true;
    to_users_.notify_all();
  }

  void issue(const std::shared_ptr<Collective>& collective) {
    Collective& c = *collective;
    if (drive(Event::kBegin, kSuccess, c.name) != Action::kProceed)
      return;  // already failed: the caller sees why
    last_name_ = c.name;
    // NCCL may connect in the call, and so wait for others.
    if (!c.captured && outstanding_.empty()) tell_of(c);
    if (!has_worked(device_->make_wait(stream_, c.ready), c.name)) return;
    if (c.captured && !has_worked(device_->count_up(captured_begun_, stream_), c.name)) return;
    const Status status = call(c);
    // The error of an earlier collective meets whoever calls next.
    const bool is_its_own = status == kSuccess || status == kInProgress || status == kInvalidArgument;
    if (drive(Event::kAnswer, status, is_its_own ? c.name : oldest_name()) != Action::kProceed) return;
    // Only now is the work on the stream: a call in progress may not have put it there yet.
    if (c.captured && !has_worked(device_->count_up(captured_finished_, stream_), c.name)) return;
    if (!has_worked(device_->record(c.done, stream_), c.name)) return;
    c.issued_at = progress_ = SteadyClock::now();
    if (c.captured) {
      if (!has_captured_) captured_progress_ = c.issued_at;
      has_captured_ = true;
      last_captured_ = c.name;
    } else {
      outstanding_.push_back(collective);
    }
    const std::lock_guard lock(mutex_);
    c.state = Collective::State::kIssued;
    to_users_.notify_all();
  }

  [[nodiscard]] Status call(const Collective& c) {
    switch (c.operation) {
      case PageOperation::kBroadcast:
        return api_.broadcast(c.send, c.receive, c.count, c.type, c.root, comm_, stream_);
      case PageOperation::kAllGather:
        return api_.all_gather(c.send, c.receive, c.count, c.type, comm_, stream_);
      case PageOperation::kReduceScatter:
        return api_.reduce_scatter(c.send, c.receive, c.count, c.type, c.reduce, comm_, stream_);
      case PageOperation::kReduce:
        return api_.reduce(c.send, c.receive, c.count, c.type, c.reduce, c.root, comm_, stream_);
      case PageOperation::kSend:
        return api_.send(c.send, c.count, c.type, c.root, comm_, stream_);
      case PageOperation::kRecv:
        return api_.recv(c.receive, c.count, c.type, c.root, comm_, stream_);
      default:  // a barrier is one, too
        return api_.all_reduce(c.send, c.receive, c.count, c.type, c.reduce, comm_, stream_);
    }
  }

  [[nodiscard]] Action drive(Event event, Status status, const std::string& subject) {
    const Instant begun = SteadyClock::now();
    Step step = advance(lifecycle_, event, status, options_.limits, begun);
    while (true) {
      const bool is_new_failure = lifecycle_.cause == Cause::kNone && step.state.cause != Cause::kNone;
      if (is_new_failure) {
        // Before the communicator is gone: it has the library's last words.
        const Lifecycle failed{lifecycle_.phase, {}, step.state.cause, step.state.status};
        set_failure(error_of(failed, subject));
      }
      lifecycle_ = step.state;
      Status answer = kSuccess;
      switch (step.action) {
        case Action::kNone:
        case Action::kProceed:
          return step.action;
        case Action::kAskAgain: {
          const auto pause = pause_before_asking(SteadyClock::now() - begun);
          // Yields: on a machine with few cores NCCL's thread needs this one.
          if (pause.count() == 0)
            std::this_thread::yield();
          else
            std::this_thread::sleep_for(pause);
          answer = asynchronous_error();
          break;
        }
        case Action::kFinalize:
          answer = api_.comm_finalize(comm_);
          break;
        case Action::kDestroy:
          (void)api_.comm_destroy(comm_);
          comm_ = nullptr;
          return step.action;
        case Action::kAbort:
          if (comm_ != nullptr) (void)api_.comm_abort(comm_);
          comm_ = nullptr;
          return step.action;
      }
      step = advance(lifecycle_, Event::kAnswer, answer, options_.limits, SteadyClock::now());
    }
  }

  void watch() {
    if (lifecycle_.phase != Phase::kReady) return;
    const auto taken = take_finished();
    if (!taken) return (void)has_worked(fail(taken.error()), oldest_name());
    if (const auto& finished = *taken) {
      progress_ = SteadyClock::now();
      if (!outstanding_.empty()) {
        tell_of(*outstanding_.front());
      } else {
        if (told_ != finished->order) tell_of(*finished);
        options_.record.end(true);
      }
    }
    if (!outstanding_.empty() &&
        SteadyClock::now() - outstanding_.front()->issued_at > options_.limits.call) {
      (void)drive(Event::kOverdue, kSuccess, oldest_name());
      return;
    }
    if (has_captured_) watch_captured();
    if (lifecycle_.phase == Phase::kReady) watch_peers();
    if (lifecycle_.phase != Phase::kReady) return;
    if (const Status answer = asynchronous_error(); answer != kSuccess)
      (void)drive(Event::kAnswer, answer, oldest_name());
  }

  void watch_captured() {
    // Words in host memory, written by the GPU: reading them can neither block nor disturb a capture.
    const std::uint32_t begun = __atomic_load_n(captured_begun_, __ATOMIC_ACQUIRE);
    const std::uint32_t finished = __atomic_load_n(captured_finished_, __ATOMIC_ACQUIRE);
    const bool is_moving = begun != last_begun_ || finished != last_finished_ || begun == finished;
    if (begun != last_begun_) {
      told_ = 0;
      options_.record.begin(PageOperation::kCaptured, begun, 0);
    }
    if (begun == finished && told_ == 0) {
      options_.record.end(true);
      // It was issued after them.
      if (!outstanding_.empty()) tell_of(*outstanding_.front());
    }
    last_begun_ = begun;
    last_finished_ = finished;
    if (is_moving)
      captured_progress_ = progress_ = SteadyClock::now();
    else if (SteadyClock::now() - captured_progress_ > options_.limits.captured)
      (void)drive(Event::kOverdue, kSuccess, captured_name());
  }

  void watch_peers() {
    const Instant now = SteadyClock::now();
    if (now - looked_ < kWatchPause) return;
    looked_ = now;
    look_at_peers();
    // Where data goes one way only the rank that gave it may be done and gone while this rank's stream has
    // not come to it; every other collective needs all ranks to the end, and a send the one that takes it.
    const auto needs_all = [&](const Collective& c) {
      if (c.operation == PageOperation::kSend)
        return std::find(ended_.begin(), ended_.end(), c.root) != ended_.end();
      return c.root < 0;
    };
    const bool waits =
        last_begun_ != last_finished_ || (!outstanding_.empty() && needs_all(*outstanding_.front()));
    if (!ended_.empty() && waits && now - progress_ > kPeerGrace)
      (void)drive(Event::kPeerEnded, kSuccess, outstanding_.empty() ? captured_name() : oldest_name());
  }

  void look_at_peers() {
    // Whom the first loss made end is not to blame.
    if (ended_.empty()) ended_ = options_.peers.ended();
  }

  void tell_of(const Collective& c) {
    told_ = c.order;
    options_.record.begin(c.operation, c.sequence, c.size_bytes, c.root);
  }

  void set_failure(Error error) {
    options_.record.end(false);
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(error);  // the first error stays
    to_users_.notify_all();
  }

  /// False: the device could not do it, and the communicator has failed.
  bool has_worked(const Result<void>& done, const std::string& subject) {
    if (done) return true;
    set_failure(
        {done.error().code, fmt::format("rank {}: {}: {}", options_.rank, subject, done.error().message)});
    (void)drive(Event::kAnswer, kUnhandledCudaError, subject);
    return false;
  }

  [[nodiscard]] Status asynchronous_error() const {
    Status asynchronous = kSuccess;
    const Status answer = api_.comm_get_async_error(comm_, &asynchronous);
    return answer == kSuccess ? asynchronous : answer;
  }

  [[nodiscard]] Error error_of(const Lifecycle& state, const std::string& subject) {
    std::string text = fmt::format("rank {} of {}: {} (NCCL {}): ", options_.rank, options_.world_size,
                                   subject, api_.version_text());
    if (state.cause == Cause::kTimeout) {
      const Limits& limits = options_.limits;
      const Millis limit = state.phase == Phase::kStarting || subject == "start" ? limits.start
                           : subject == captured_name()                          ? limits.captured
                                                                                 : limits.call;
      text += fmt::format(
          "not finished after {} ms; a rank is missing, stuck or runs another operation: compare the ranks' "
          "last lines",
          limit.count());
      return {code_of(state), std::move(text)};
    }
    if (state.cause == Cause::kNccl) text += api_.describe(state.status, comm_) + "; ";
    if (code_of(state) != ErrorCode::kPeerGone)
      text += "NCCL_DEBUG=WARN says more";
    else if (look_at_peers(); !ended_.empty())
      text += groups::rank_list(ended_) + (ended_.size() == 1 ? " has ended" : " have ended");
    else
      text += "a peer has ended or the network failed: look for the first rank that failed";
    return {code_of(state), std::move(text)};
  }

  /// Takes out what the GPU has finished; the last of them, or null.
  [[nodiscard]] Result<std::shared_ptr<Collective>> take_finished() {
    std::shared_ptr<Collective> finished;
    while (!outstanding_.empty()) {
      MUSTER_TRY(const bool done, device_->is_done(outstanding_.front()->done));
      if (!done) break;
      const std::lock_guard lock(mutex_);
      finished = std::move(outstanding_.front());
      finished->state = Collective::State::kFinished;
      outstanding_.pop_front();
      to_users_.notify_all();
    }
    return finished;
  }

  [[nodiscard]] std::string oldest_name() {
    (void)take_finished();  // what has ended since the last look is not to blame
    return outstanding_.empty() ? last_name_ : outstanding_.front()->name;
  }

  [[nodiscard]] std::string captured_name() const {
    return last_captured_ + " or one before it, in a captured step";
  }

  template <class Condition>
  [[nodiscard]] Result<void> wait_for(Condition condition, const std::string& subject) {
    std::unique_lock lock(mutex_);
    const Limits& limits = options_.limits;
    const Millis longest = limits.start + limits.call + kMargin;
    if (!to_users_.wait_for(lock, longest, [&] { return failure_ || condition(); }))
      failure_ = Error{ErrorCode::kTimeout,
                       fmt::format("rank {}: {}: NCCL {} has not returned for {} s; see NCCL_DEBUG=INFO",
                                   options_.rank, subject, api_.version_text(), longest.count() / 1000)};
    if (failure_ && !condition()) return fail(*failure_);
    return {};
  }

  const NcclApi api_;
  const std::shared_ptr<NcclDevice> device_;
  Options options_;

  // Of the comm thread alone, as the record is.
  Comm comm_ = nullptr;
  Lifecycle lifecycle_;
  void* stream_ = nullptr;
  std::uint32_t* captured_begun_ = nullptr;     // counted up on the GPU in front of each captured collective,
  std::uint32_t* captured_finished_ = nullptr;  // and behind it
  std::uint32_t last_begun_ = 0, last_finished_ = 0;
  Instant captured_progress_{};
  Instant progress_{};      // when a collective was last seen to begin or finish
  Instant looked_{};        // at the peers
  std::vector<int> ended_;  // ranks that were gone when first one was
  bool has_captured_ = false;
  std::string last_name_ = "start";
  std::string last_captured_;
  std::uint64_t told_ = 0;  // order of the collective in the record; 0: a captured one
  std::deque<std::shared_ptr<Collective>> outstanding_;

  // Shared.
  std::mutex mutex_;
  std::condition_variable to_thread_, to_users_;
  std::deque<std::shared_ptr<Collective>> queue_;
  std::optional<Error> failure_;
  bool started_ = false, stopping_ = false, over_ = false;
  int finish_waiters_ = 0;

  std::thread thread_;  // last: started when everything above is there
};

// The first byte of what rank 0 says: its id follows, or why it could not make one.
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

struct Introduction {
  UniqueId id{};
  groups::PeerWatch peers;  // the processes of this host, so that the rank which ends is known and named
};

/// A collective: rank 0's id goes to all, and where each runs.
Result<Introduction> introduce(Store& store, const GroupSettings& settings, const NcclApi& api) {
  // The n-th group that these ranks make: every rank counts its own, and as making one is a collective they
  // agree.
  MUSTER_TRY(const std::int64_t sequence, store.add(fmt::format("nccl/groups_of_rank/{}", settings.rank), 1));
  const auto exchange = groups::exchange_through_store(store, fmt::format("nccl/{}", sequence),
                                                       groups::all_ranks(settings.world_size), settings.rank,
                                                       SteadyClock::now() + settings.timeout);
  // A pid means something to who sees the same processes.
  const std::string here =
      fmt::format("{} {} ", groups::host_id(current_environment()), groups::pid_namespace_inode());
  std::string mine = here + std::to_string(::getpid());
  Introduction out;
  if (settings.rank == 0) {
    const Status status = api.get_unique_id(&out.id);
    mine = status == kSuccess ? kHasId + std::string(out.id.bytes, sizeof out.id.bytes) + mine
                              : kHasError + ("rank 0: ncclGetUniqueId: " + api.describe(status, nullptr));
  }
  MUSTER_TRY(auto texts, exchange(mine));
  std::string& first = texts.front();
  if (first.starts_with(kHasError)) return fail(ErrorCode::kFailed, first.substr(1));
  if (first.size() <= sizeof out.id.bytes || !first.starts_with(kHasId))
    return fail(ErrorCode::kProtocol,
                "rank {}: rank 0 gave {} bytes that hold no NCCL id; is another program using this store?",
                settings.rank, first.size());
  std::memcpy(out.id.bytes, first.data() + 1, sizeof out.id.bytes);
  first.erase(0, 1 + sizeof out.id.bytes);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    pid_t pid = 0;
    const char* const end = texts[rank].data() + texts[rank].size();
    if (static_cast<int>(rank) != settings.rank && texts[rank].starts_with(here) &&
        std::from_chars(texts[rank].data() + here.size(), end, pid).ptr == end && pid > 1)
      out.peers.add(static_cast<int>(rank), pid);
  }
  return out;
}

class NcclGroup final : public ProcessGroup {
 public:
  NcclGroup(const NcclApi& api, const GroupSettings& settings, std::shared_ptr<NcclDevice> device,
            void* stream)
      : api_(api), settings_(settings), device_(std::move(device)), stream_(stream) {}

  ~NcclGroup() override {
    // The communicator ends before its memory goes, also where a Work is left.
    if (thread_ != nullptr) thread_->stop();
    // ncclMemFree unmaps without waiting (NCCL 2.28.9, src/allocator.cc), unlike cudaFree.
    if (!blocks_.empty()) (void)device_->synchronize(stream_);
    if (barrier_word_ != nullptr) device_->free(barrier_word_);
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

  Result<void> reduce(Buffer buffer, int root, ReduceOp op) override {
    return run(make(groups::describe_reduce(buffer, root, op, settings_.world_size), buffer.data, buffer));
  }

  Result<void> send(ConstBuffer buffer, int to) override {
    return transfer(groups::OpKind::kSend, buffer.data, {nullptr, buffer.count, buffer.dtype}, to);
  }

  Result<void> recv(Buffer buffer, int from) override {
    return transfer(groups::OpKind::kRecv, buffer.data, buffer, from);
  }

  Result<void> barrier() override {
    MUSTER_TRY(auto made, make(groups::OpDescriptor{}, barrier_word_, {barrier_word_, 1, DType::kInt32}));
    if (made->captured)
      return invalid("rank {}: a barrier cannot be part of a captured step", settings_.rank);
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
      blocks_.emplace_back(memory, api_.mem_free);
      MUSTER_OK(device_->zero(memory, bytes));
      return memory;
    }
    MUSTER_TRY(memory, device_->allocate(bytes));
    blocks_.emplace_back(memory, [device = device_](void* block) { device->free(block); });
    return memory;
  }

 private:
  /// Makes the compute stream wait for the collective. Outlives the group's thread at need.
  class NcclWork final : public Work {
   public:
    NcclWork(std::shared_ptr<NcclCommThread> thread, void* stream, std::shared_ptr<Collective> collective)
        : thread_(std::move(thread)), stream_(stream), collective_(std::move(collective)) {}
    ~NcclWork() override {
      if (!waited_) (void)wait();
    }
    Result<void> wait() override {
      if (!waited_) waited_ = wait_on(stream_);
      return *waited_;
    }
    Result<void> wait_on(void* stream) override {
      MUSTER_OK(thread_->wait_issued(*collective_));
      return collective_->device->make_wait(stream, collective_->done);
    }

   private:
    std::shared_ptr<NcclCommThread> thread_;
    void* stream_;
    std::shared_ptr<Collective> collective_;
    std::optional<Result<void>> waited_;
  };

  /// `output`: with the number of elements as NCCL counts for this kind.
  Result<std::shared_ptr<Collective>> make(const Result<groups::OpDescriptor>& checked, const void* input,
                                           Buffer output) {
    if (!checked) return fail(fmt::format("rank {}", settings_.rank), checked.error());
    if (const auto failure = thread_->failure()) return fail(*failure);
    MUSTER_OK(device_->select());
    auto made = std::make_shared<Collective>(device_);
    made->send = input;
    made->receive = output.data;
    made->operation = checked->kind;
    made->count = output.count;
    made->type = type_of(output.dtype);
    made->reduce = kind_of(checked->reduce);
    made->root = checked->root;
    const bool is_transfer = is_point_to_point(checked->kind);
    if (!is_transfer) ++sequence_;
    made->sequence = sequence_ + (is_transfer ? 1 : 0);
    made->order = ++order_;
    made->size_bytes = checked->kind == groups::OpKind::kBarrier ? 0 : output.size_bytes();
    made->name = fmt::format("{} #{} of {} {}", kPageOperations.at(static_cast<std::size_t>(checked->kind)),
                             made->sequence, output.count, to_string(output.dtype));
    if (is_transfer)
      made->name +=
          fmt::format(" {} rank {}", checked->kind == groups::OpKind::kSend ? "to" : "from", made->root);
    MUSTER_TRY(made->captured, device_->is_capturing(stream_));
    return made;
  }

  /// Marks where the inputs are ready and gives the collective to the comm thread.
  Result<void> hand_over(const std::shared_ptr<Collective>& made) {
    MUSTER_TRY(made->ready, device_->create_event());
    MUSTER_TRY(made->done, device_->create_event());
    MUSTER_OK(device_->record(made->ready, stream_));
    return thread_->submit(made);
  }

  Result<std::unique_ptr<Work>> submit(std::shared_ptr<Collective> made) {
    MUSTER_OK(hand_over(made));
    // Graphs are not synchronized: while the comm thread adds to the one that is being captured, this thread
    // must not.
    if (made->captured) MUSTER_OK(thread_->wait_issued(*made));
    return std::make_unique<NcclWork>(thread_, stream_, std::move(made));
  }

  Result<void> copy(void* to, const void* from, std::size_t size_bytes) override {
    if (from == to || size_bytes == 0) return {};
    MUSTER_OK(device_->select());
    return device_->copy(to, from, size_bytes, stream_);
  }

  Result<void> transfer(groups::OpKind kind, const void* data, Buffer buffer, int peer) {
    return run(make(groups::describe_transfer(kind, {data, buffer.count, buffer.dtype}, peer, settings_.rank,
                                              settings_.world_size),
                    data, buffer));
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
  std::shared_ptr<NcclCommThread> thread_;
  std::vector<std::shared_ptr<void>> blocks_;
  void* barrier_word_ = nullptr;
  std::uint64_t sequence_ = 0;  // of collectives
  std::uint64_t order_ = 0;     // of everything
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
  MUSTER_TRY(Introduction met, introduce(store, settings, api));
  come(PageMark::kNcclIdKnown);
  auto group = std::make_unique<NcclGroup>(api, settings, std::move(device), stream);
  MUSTER_OK(group->start(met.id, std::move(met.peers)));
  return group;
}

}  // namespace nccl

#ifndef MUSTER_HAS_CUDA
Result<std::unique_ptr<nccl::NcclDevice>> nccl::make_cuda_device(int index) {
  return fail(ErrorCode::kUnsupported,
              "NCCL on GPU {}: this build has no CUDA; use a CPU backend, or build where nvcc is on PATH",
              index);
}
#endif

Result<void> check_backend(Backend backend) {
  if (backend != Backend::kNccl) return {};
  if (!kHasCuda)
    return fail(ErrorCode::kUnsupported, "an NCCL group needs a build with CUDA, and this is none");
  MUSTER_OK(nccl::NcclApi::load(current_value("MUSTER_NCCL_LIBRARY")));
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
  settings.library = current_value("MUSTER_NCCL_LIBRARY");
  settings.shares_gpu = current_value("NCCL_HOSTID").has_value();
  return nccl::make_group(store, settings, std::move(gpu), stream);
}

}  // namespace muster
