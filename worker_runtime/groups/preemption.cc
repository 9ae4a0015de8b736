// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <signal.h>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <muster/preemption.h>
#include <muster/prefix_store.h>

#include "rendezvous/base/env.h"
#include "rendezvous/base/syscall.h"
#include "worker_runtime/groups/base/collective.h"
#include "worker_runtime/groups/base/meeting.h"

namespace muster {
namespace {

/// A thread waits for its key anew this often, so that it ends though nobody could tell it to.
constexpr std::chrono::seconds kWakeWait{10};

/// What the handler has seen. A handler has no argument of ours: the one place where a global is needed.
std::atomic<int> seen_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void note_signal(int signal) {
  seen_signal.store(signal, std::memory_order_relaxed);
}

/// Our handler for these signals, and what was there before back again.
class Handlers {
 public:
  Handlers& operator=(Handlers&&) = delete;  // nor copied
  ~Handlers() {
    for (const auto& [signal, action] : before_) {
      if (outlive_ && (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL)
        (void)handle(signal, SA_RESTART, nullptr);
      else
        ::sigaction(signal, &action, nullptr);
    }
    if (stack_.empty()) return;
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    ::sigaltstack(&none, nullptr);
  }

  Result<void> install(const std::vector<int>& signals) {
    // oneDNN's sgemm lets the stack pointer point into the heap while it computes: a handler on that stack
    // overwrites what malloc keeps there (in 28 of 60 samples of a training, 2.6.3). So this thread gets
    // another one. It is the one that signals to the process come to, if it is the first.
    if (stack_t current{}; ::sigaltstack(nullptr, &current) == 0 && (current.ss_flags & SS_DISABLE) != 0) {
      stack_.resize(kStackBytes);
      stack_t own{};
      own.ss_sp = stack_.data();
      own.ss_size = stack_.size();
      if (::sigaltstack(&own, nullptr) != 0)
        return fail(errno_error("preemption: a stack for the signal handler", errno));
    }
    for (const int signal : signals) {
      struct sigaction before {};
      if (!handle(signal, SA_RESTART | SA_ONSTACK, &before))
        return fail(errno_error(fmt::format("preemption: handle signal {}", signal), errno));
      before_.emplace_back(signal, before);
    }
    return {};
  }

  /// A signal that would end the process does not do so after this object's end either. (On the thread's own
  /// stack: nothing is computed any more.)
  void outlive() { outlive_ = true; }

 private:
  static bool handle(int signal, int flags, struct sigaction* before) {
    struct sigaction action {};
    action.sa_handler = note_signal;
    action.sa_flags = flags;
    ::sigemptyset(&action.sa_mask);
    return ::sigaction(signal, &action, before) == 0;
  }

  static constexpr std::size_t kStackBytes = 64 * 1024;  // registers alone take 11 KiB where there is AMX

  std::vector<std::pair<int, struct sigaction>> before_;
  std::vector<std::byte> stack_;  // empty: the thread had one
  bool outlive_ = false;
};

std::string wake_key(int rank) {
  return fmt::format("wake/{}", rank);
}

std::string answer_key(int rank) {
  return fmt::format("at/{}", rank);
}

Result<std::uint64_t> parse_call(std::string_view text) {
  MUSTER_TRY(const std::int64_t call, parse_integer("preemption: a number of calls", text, 0, INT64_MAX));
  return static_cast<std::uint64_t>(call);
}

/// Calls of should_stop() are counted. The thread of a rank that is told to stop holds it: it marks the
/// counter, so that no further call returns by itself, and tells the store how many have. The call after the
/// most of them is the one that says true: no rank has passed it, and every rank will come to it.
class StoppedByStore final : public Preemption {
 public:
  StoppedByStore(int rank, int world_size, std::chrono::milliseconds timeout)
      : rank_(rank), world_size_(world_size), timeout_(timeout) {}

  ~StoppedByStore() override {
    leaving_.store(true);
    if (!watcher_.joinable()) return;
    // Where this fails the thread's connection is most likely gone too; else it looks within kWakeWait.
    (void)store_->set(wake_key(rank_), "left");
    watcher_.join();
  }

  Result<void> start(const Context& context, const std::vector<int>& signals) {
    if (world_size_ > 1) {
      if (context.store == nullptr)
        return fail(ErrorCode::kUnsupported, "preemption: several ranks and no store through which to agree");
      // Counted by each rank for itself: the n-th one of this context is everybody's n-th.
      MUSTER_TRY(const std::int64_t number, context.store->add(fmt::format("preemption/made/{}", rank_), 1));
      const std::string prefix = fmt::format("preemption/{}", number);
      store_ = make_prefix_store(prefix, context.store);
      MUSTER_TRY(std::shared_ptr<Store> apart, context.store->apart());
      thread_store_ = apart == nullptr ? store_ : make_prefix_store(prefix, std::move(apart));
    }
    seen_signal.store(0);
    MUSTER_OK(handlers_.install(signals));
    if (world_size_ > 1) {
      MUSTER_TRY(watcher_, start_quiet_thread([this] { watch(); }));
    }
    return {};
  }

  Result<bool> should_stop() override {
    const bool wanted =
        requested_.load(std::memory_order_relaxed) || seen_signal.load(std::memory_order_relaxed) != 0;
    if (world_size_ == 1) return told(wanted);
    const std::uint64_t before = calls_.fetch_add(1, std::memory_order_acq_rel);
    if ((before & kHeld) != 0) {
      MUSTER_TRY(const bool stop, settled((before & ~kHeld) + 1));
      return told(stop);
    }
    if (wanted && !asked_) {
      asked_ = true;
      if (auto asked = ask(); !asked) return fail("preemption", std::move(asked).error());
    }
    return false;
  }

  void request() noexcept override { requested_.store(true, std::memory_order_relaxed); }
  int signal() const noexcept override { return seen_signal.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint64_t kHeld = std::uint64_t{1} << 63;

  /// Who has stopped saves its state and ends with kExitPreempted. A signal that comes late (the scheduler's
  /// to all processes, the launcher's) must not make another end of it.
  bool told(bool stop) {
    if (stop) handlers_.outlive();
    return stop;
  }

  /// Of several ranks that ask at once one tells everybody: as many keys as ranks, not their square.
  Result<void> ask() {
    MUSTER_TRY(const std::int64_t place, store_->add("asked", 1));
    if (place != 1) return {};
    std::vector<std::pair<std::string, std::string>> wakes;
    wakes.reserve(static_cast<std::size_t>(world_size_));
    for (int rank = 0; rank < world_size_; ++rank) wakes.emplace_back(wake_key(rank), "stop");
    return store_->multi_set(wakes);
  }

  Result<bool> settled(std::uint64_t call) {
    std::unique_lock lock(mutex_);
    // The thread's own waits end by the timeout.
    changed_.wait(lock, [&] { return stop_at_.has_value(); });
    if (!*stop_at_) return fail(stop_at_->error());
    return call >= **stop_at_;
  }

  void watch() {
    while (true) {
      const auto told = thread_store_->get(wake_key(rank_), kWakeWait);
      if (told) break;
      // Without a store nobody can ask, and that is no reason to end a training.
      if (leaving_.load() || told.error().code != ErrorCode::kTimeout) return;
    }
    auto agreed = agree();
    if (!agreed) agreed = fail("preemption", std::move(agreed).error());
    const std::lock_guard lock(mutex_);
    stop_at_ = std::move(agreed);
    changed_.notify_all();
  }

  /// The number of the call that says true.
  Result<std::uint64_t> agree() {
    const std::uint64_t done = calls_.fetch_or(kHeld, std::memory_order_acq_rel);
    MUSTER_OK(thread_store_->set(answer_key(rank_), std::to_string(done)));
    MUSTER_TRY(const std::int64_t answers, thread_store_->add("answers", 1));
    if (answers == world_size_) {
      MUSTER_TRY(const auto all, thread_store_->multi_get(answer_keys(), timeout_));
      std::uint64_t most = 0;
      for (const std::string& text : all) {
        MUSTER_TRY(const std::uint64_t calls, parse_call(text));
        most = std::max(most, calls);
      }
      MUSTER_OK(thread_store_->set("stop_at", std::to_string(most + 1)));
      return most + 1;
    }
    // It takes no more steps, and need not know.
    if (leaving_.load()) return done + 1;
    auto text = thread_store_->get("stop_at", timeout_);
    if (!text && text.error().code == ErrorCode::kTimeout) return fail(silent_ranks());
    if (!text) return fail(std::move(text).error());
    return parse_call(*text);
  }

  std::vector<std::string> answer_keys() const {
    std::vector<std::string> keys(static_cast<std::size_t>(world_size_));
    for (int rank = 0; rank < world_size_; ++rank) keys[static_cast<std::size_t>(rank)] = answer_key(rank);
    return keys;
  }

  Error silent_ranks() {
    const auto silent =
        groups::ranks_without_key(*thread_store_, groups::all_ranks(world_size_), answer_keys());
    return {
        ErrorCode::kTimeout,
        fmt::format("no answer within {} s from {} (of {}); does it still run, and has it a Preemption?",
                    static_cast<double>(timeout_.count()) / 1000, groups::rank_list(silent), world_size_)};
  }

  const int rank_;
  const int world_size_;
  const std::chrono::milliseconds timeout_;
  std::shared_ptr<Store> store_;         // used by the program's thread
  std::shared_ptr<Store> thread_store_;  // used by the watcher, which blocks in it
  std::atomic<bool> requested_{false};
  std::atomic<bool> leaving_{false};
  bool asked_ = false;                   // the others were told, or that failed
  std::atomic<std::uint64_t> calls_{0};  // that have begun; with kHeld: do not return by themselves
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Result<std::uint64_t>> stop_at_;
  Handlers handlers_;
  std::thread watcher_;
};

}  // namespace

Result<std::unique_ptr<Preemption>> Preemption::create(const Context& context,
                                                       const PreemptionOptions& options) {
  auto made = std::make_unique<StoppedByStore>(context.rank, context.world_size, options.timeout);
  MUSTER_OK(made->start(context, options.signals));
  return made;
}

}  // namespace muster
