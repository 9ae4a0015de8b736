// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/nccl/nccl_comm_thread.h"

#include <cstdio>
#include <unistd.h>

#include "worker_runtime/groups/base/collective.h"

namespace muster::nccl {
namespace {

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
  if (state.cause == Cause::kPeerEnded) return ErrorCode::kPeerGone;
  switch (state.status) {
    case kRemoteError:
    case kSystemError:
      return ErrorCode::kPeerGone;
    default:
      return ErrorCode::kFailed;
  }
}

}  // namespace

EventPool::~EventPool() {
  for (void* event : free_) device_->destroy_event(event);
}

Result<void*> EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      void* event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  return device_->create_event();
}

void EventPool::give_back(void* event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

Collective::~Collective() {
  if (ready != nullptr) pool->give_back(ready);
  if (done != nullptr) pool->give_back(done);
}

NcclCommThread::NcclCommThread(const NcclApi& api, std::shared_ptr<NcclDevice> device, Options options)
    : api_(api), device_(std::move(device)), options_(std::move(options)), thread_([this] { run(); }) {}

NcclCommThread::~NcclCommThread() {
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    to_thread_.notify_one();
    const Limits& limits = options_.limits;
    Millis longest = limits.finalize + kMargin;
    if (!failure_) longest += limits.start + limits.call;  // what is queued is still issued
    // Until here every wait of the thread has a deadline of its own; only a call that does not return passes
    // this one.
    if (!to_users_.wait_for(lock, longest, [this] { return over_; })) {
      std::fprintf(stderr,
                   "muster: rank %d: NCCL %s does not return from ending its communicator (last operation: "
                   "%s); it waits for CUDA graphs with captured collectives, which must be destroyed before "
                   "their group; exiting\n",
                   options_.rank, api_.version_text().c_str(), last_name_.c_str());
      std::fflush(stderr);
      ::_exit(kExitSoftware);
    }
  }
  thread_.join();
}

template <class Condition>
Result<void> NcclCommThread::wait_for(Condition condition, const std::string& subject) {
  std::unique_lock lock(mutex_);
  const Limits& limits = options_.limits;
  const Millis longest = limits.start + limits.call + kMargin;
  if (!to_users_.wait_for(lock, longest, [&] { return failure_ || condition(); }))
    failure_ =
        Error{ErrorCode::kTimeout, "rank " + std::to_string(options_.rank) + ": " + subject + ": NCCL " +
                                       api_.version_text() + " has not returned for " +
                                       std::to_string(longest.count() / 1000) + " s; see NCCL_DEBUG=INFO"};
  if (failure_ && !condition()) return fail(*failure_);
  return {};
}

Result<void> NcclCommThread::wait_started() {
  return wait_for([this] { return started_; }, "start");
}

Result<void> NcclCommThread::submit(std::shared_ptr<Collective> collective) {
  const std::lock_guard lock(mutex_);
  if (failure_) return fail(*failure_);
  queue_.push_back(std::move(collective));
  to_thread_.notify_one();
  return {};
}

Result<void> NcclCommThread::wait_issued(const Collective& collective) {
  return wait_for([&] { return collective.state != Collective::State::kQueued; }, collective.name);
}

Result<void> NcclCommThread::wait_finished(const Collective& collective) {
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

std::optional<Error> NcclCommThread::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void NcclCommThread::set_failure(Error error) {
  options_.record.end(false);
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(error);  // the first error stays
  to_users_.notify_all();
}

Error NcclCommThread::error_of(const Lifecycle& state, const std::string& subject) {
  std::string text = "rank " + std::to_string(options_.rank) + " of " + std::to_string(options_.world_size) +
                     ": " + subject + " (NCCL " + api_.version_text() + "): ";
  if (state.cause == Cause::kTimeout) {
    const Limits& limits = options_.limits;
    const Millis limit = state.phase == Phase::kStarting || subject == "start" ? limits.start
                         : subject == captured_name()                          ? limits.captured
                                                                               : limits.call;
    text += "not finished after " + std::to_string(limit.count()) +
            " ms; a rank is missing, stuck or runs another operation: compare the ranks' last lines";
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

void NcclCommThread::look_at_peers() {
  // Whom the first loss made end is not to blame.
  if (ended_.empty()) ended_ = options_.peers.ended();
}

std::string NcclCommThread::oldest_name() {
  (void)take_finished();  // what has ended since the last look is not to blame
  return outstanding_.empty() ? last_name_ : outstanding_.front()->name;
}

std::string NcclCommThread::captured_name() const {
  return last_captured_ + " or one before it, in a captured step";
}

Action NcclCommThread::drive(Event event, Status status, const std::string& subject) {
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

Status NcclCommThread::asynchronous_error() const {
  Status asynchronous = kSuccess;
  const Status answer = api_.comm_get_async_error(comm_, &asynchronous);
  return answer == kSuccess ? asynchronous : answer;
}

void NcclCommThread::device_failed(const Error& error, const std::string& subject) {
  set_failure({error.code, "rank " + std::to_string(options_.rank) + ": " + subject + ": " + error.message});
  (void)drive(Event::kAnswer, kUnhandledCudaError, subject);
}

void NcclCommThread::start_communicator() {
  const auto prepare = [this]() -> Result<void> {
    MUSTER_OK(device_->select());
    MUSTER_TRY(stream_, device_->create_stream());
    MUSTER_TRY(captured_begun_, device_->create_counter());
    MUSTER_TRY(captured_finished_, device_->create_counter());
    return {};
  };
  if (auto prepared = prepare(); !prepared) {
    lifecycle_.phase = Phase::kFailed;
    return set_failure({prepared.error().code, "rank " + std::to_string(options_.rank) +
                                                   ": start of NCCL: " + prepared.error().message});
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

Status NcclCommThread::call(const Collective& c) {
  switch (c.operation) {
    case PageOperation::kBroadcast:
      return api_.broadcast(c.send, c.receive, c.count, c.type, c.root, comm_, stream_);
    case PageOperation::kAllGather:
      return api_.all_gather(c.send, c.receive, c.count, c.type, comm_, stream_);
    case PageOperation::kReduceScatter:
      return api_.reduce_scatter(c.send, c.receive, c.count, c.type, c.reduce, comm_, stream_);
    default:  // a barrier is one, too
      return api_.all_reduce(c.send, c.receive, c.count, c.type, c.reduce, comm_, stream_);
  }
}

void NcclCommThread::tell_of(const Collective& c) {
  told_ = c.sequence;
  options_.record.begin(c.operation, c.sequence, c.size_bytes, c.root);
}

void NcclCommThread::issue(const std::shared_ptr<Collective>& collective) {
  Collective& c = *collective;
  if (drive(Event::kBegin, kSuccess, c.name) != Action::kProceed)
    return;  // already failed: the caller sees why
  last_name_ = c.name;
  // NCCL may connect in the call, and so wait for others.
  if (!c.captured && outstanding_.empty()) tell_of(c);
  if (auto waits = device_->make_wait(stream_, c.ready); !waits) return device_failed(waits.error(), c.name);
  if (c.captured)
    if (auto counted = device_->count_up(captured_begun_, stream_); !counted)
      return device_failed(counted.error(), c.name);
  const Status status = call(c);
  // The error of an earlier collective meets whoever calls next.
  const bool is_its_own = status == kSuccess || status == kInProgress || status == kInvalidArgument;
  if (drive(Event::kAnswer, status, is_its_own ? c.name : oldest_name()) != Action::kProceed) return;
  // Only now is the work on the stream: a call in progress may not have put it there yet.
  if (c.captured)
    if (auto counted = device_->count_up(captured_finished_, stream_); !counted)
      return device_failed(counted.error(), c.name);
  if (auto recorded = device_->record(c.done, stream_); !recorded)
    return device_failed(recorded.error(), c.name);
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

Result<std::shared_ptr<Collective>> NcclCommThread::take_finished() {
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

void NcclCommThread::watch() {
  if (lifecycle_.phase != Phase::kReady) return;
  const auto taken = take_finished();
  if (!taken) return device_failed(taken.error(), oldest_name());
  if (const auto& finished = *taken) {
    progress_ = SteadyClock::now();
    if (!outstanding_.empty()) {
      tell_of(*outstanding_.front());
    } else {
      if (told_ != finished->sequence) tell_of(*finished);
      options_.record.end(true);
    }
  }
  if (!outstanding_.empty() && SteadyClock::now() - outstanding_.front()->issued_at > options_.limits.call) {
    (void)drive(Event::kOverdue, kSuccess, oldest_name());
    return;
  }
  if (has_captured_) watch_captured();
  if (lifecycle_.phase == Phase::kReady) watch_peers();
  if (lifecycle_.phase != Phase::kReady) return;
  if (const Status answer = asynchronous_error(); answer != kSuccess)
    (void)drive(Event::kAnswer, answer, oldest_name());
}

void NcclCommThread::watch_captured() {
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

void NcclCommThread::watch_peers() {
  const Instant now = SteadyClock::now();
  if (now - looked_ < kWatchPause) return;
  looked_ = now;
  look_at_peers();
  // A broadcast's root may be done and gone while this rank's stream has not come to it; every other
  // collective needs all ranks to the end.
  const bool waits = last_begun_ != last_finished_ ||
                     (!outstanding_.empty() && outstanding_.front()->operation != PageOperation::kBroadcast);
  if (!ended_.empty() && waits && now - progress_ > kPeerGrace)
    (void)drive(Event::kPeerEnded, kSuccess, outstanding_.empty() ? captured_name() : oldest_name());
}

void NcclCommThread::run() {
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

}  // namespace muster::nccl
