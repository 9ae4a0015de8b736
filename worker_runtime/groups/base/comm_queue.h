// SPDX-License-Identifier: Apache-2.0
// CommQueue: operations that were started and run one after another in that order, on a thread of the queue's
// own or on the thread that waits for them, whichever comes first. Owned by a CPU group. The thread exists
// from the first start(). A waiter runs what nobody runs yet. Waits end because every operation has a
// deadline of its own. The destructor joins; the owner makes a running operation end first.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <muster/process_group.h>

namespace muster::groups {

class CommQueue {
 public:
  /// `own_thread`: it runs beside the caller's computation, so it must not spin on a core.
  using Operation = std::function<Result<void>(bool own_thread)>;

  ~CommQueue() { join(); }
  CommQueue& operator=(CommQueue&&) = delete;  // nor copied

  /// The Work may outlive the queue; it then reports kCancelled unless it had ended.
  [[nodiscard]] std::unique_ptr<Work> start(Operation operation) {
    auto item = std::make_shared<Item>();
    item->operation = std::move(operation);
    {
      const std::lock_guard lock(shared_->mutex);
      if (shared_->cancelled)
        Shared::end_cancelled(*item);
      else
        shared_->waiting.push_back(item);
      shared_->changed.notify_all();
    }
    try {
      if (!thread_.joinable()) thread_ = std::thread([shared = shared_] { shared->run(); });
    } catch (const std::system_error&) {  // none is left: who waits runs it
    }
    return std::make_unique<QueuedWork>(shared_, std::move(item));
  }

  /// Returns when nothing is outstanding; runs it on this thread where possible.
  void drain() {
    shared_->help_until([this] { return !shared_->running && shared_->waiting.empty(); });
  }

  /// Operations not begun end with kCancelled, and so does every later one. True while the queue's own thread
  /// runs one.
  bool cancel() {
    const std::lock_guard lock(shared_->mutex);
    shared_->cancelled = true;
    for (const auto& item : shared_->waiting) Shared::end_cancelled(*item);
    shared_->waiting.clear();
    shared_->changed.notify_all();
    return shared_->running;
  }

  /// In a forked child, which has no such thread: it is not waited for, nor is what it may hold locked.
  void abandon() {
    (void)new std::pair(std::move(thread_), std::exchange(shared_, std::make_shared<Shared>()));
  }

  /// Cancels, waits for the running operation and ends the thread.
  void join() {
    (void)cancel();
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->stopping = true;
      shared_->changed.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Item {
    Operation operation;
    std::optional<Result<void>> result;  // guarded by Shared::mutex
    Work::Times times;                   // likewise
  };

  /// Lives as long as the queue and every Work that came from it.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;  // an item was added or ended, or stopping
    std::deque<std::shared_ptr<Item>> waiting;
    bool running = false;  // somebody executes the item taken last
    bool cancelled = false;
    bool stopping = false;

    /// Until `done`, runs what nobody runs, else waits for who does.
    template <class Done>
    void help_until(Done done, bool own_thread = false) {
      std::unique_lock lock(mutex);
      while (!done()) {
        if (!running && !waiting.empty())
          run_one(lock, own_thread);
        else
          changed.wait(lock);
      }
    }
    void run() {
      help_until([this] { return stopping; }, true);
    }

    /// Takes the oldest item and runs it with the lock released. Needs: !running, !waiting.empty().
    void run_one(std::unique_lock<std::mutex>& lock, bool own_thread) {
      const std::shared_ptr<Item> item = std::move(waiting.front());
      waiting.pop_front();
      running = true;
      lock.unlock();
      const auto begun = std::chrono::steady_clock::now();
      Result<void> result = item->operation(own_thread);
      const auto ended = std::chrono::steady_clock::now();
      lock.lock();
      item->times = {begun, ended, own_thread};
      item->result = std::move(result);
      item->operation = nullptr;
      running = false;
      changed.notify_all();
    }

    static void end_cancelled(Item& item) {
      item.result = fail(ErrorCode::kCancelled, "all_reduce: its group was destroyed before it began");
      item.operation = nullptr;
    }
  };

  class QueuedWork final : public Work {
   public:
    QueuedWork(std::shared_ptr<Shared> shared, std::shared_ptr<Item> item)
        : shared_(std::move(shared)), item_(std::move(item)) {}
    ~QueuedWork() override { (void)QueuedWork::wait(); }

    Result<void> wait() override {
      shared_->help_until([this] { return item_->result.has_value(); });
      const std::lock_guard lock(shared_->mutex);
      return *item_->result;
    }
    Times times() const override {
      const std::lock_guard lock(shared_->mutex);
      return item_->times;
    }

   private:
    std::shared_ptr<Shared> shared_;
    std::shared_ptr<Item> item_;
  };

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::thread thread_;
};

}  // namespace muster::groups
