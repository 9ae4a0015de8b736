// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/base/comm_queue.h"

#include <optional>

namespace muster::groups {

struct CommQueue::Item {
  Operation operation;
  std::optional<Result<void>> result;  // guarded by Shared::mutex
  Work::Times times;                   // likewise
};

/// Lives as long as the queue and every Work that came from it.
struct CommQueue::Shared {
  std::mutex mutex;
  std::condition_variable changed;  // an item was added or ended, or stopping
  std::deque<std::shared_ptr<Item>> waiting;
  bool running = false;  // somebody executes the item taken last
  bool cancelled = false;
  bool stopping = false;

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

  /// Until `done`, runs what nobody runs, else waits for who does.
  template <class Done>
  void help_until(std::unique_lock<std::mutex>& lock, Done done) {
    while (!done()) {
      if (!running && !waiting.empty())
        run_one(lock, false);
      else
        changed.wait(lock);
    }
  }

  void cancel(std::unique_lock<std::mutex>& /*lock*/) {
    cancelled = true;
    for (const auto& item : waiting) end_cancelled(*item);
    waiting.clear();
    changed.notify_all();
  }

  static void end_cancelled(Item& item) {
    item.result = fail(ErrorCode::kCancelled, "all_reduce: its group was destroyed before it began");
    item.operation = nullptr;
  }
};

class CommQueue::QueuedWork final : public Work {
 public:
  QueuedWork(std::shared_ptr<Shared> shared, std::shared_ptr<Item> item)
      : shared_(std::move(shared)), item_(std::move(item)) {}
  ~QueuedWork() override { (void)QueuedWork::wait(); }

  Result<void> wait() override {
    std::unique_lock lock(shared_->mutex);
    shared_->help_until(lock, [&] { return item_->result.has_value(); });
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

CommQueue::CommQueue() : shared_(std::make_shared<Shared>()) {}

CommQueue::~CommQueue() {
  join();
}

bool CommQueue::busy() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->running;
}

void CommQueue::join() {
  {
    std::unique_lock lock(shared_->mutex);
    shared_->cancel(lock);
    shared_->stopping = true;
    shared_->changed.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

std::unique_ptr<Work> CommQueue::start(Operation operation) {
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
  if (!thread_.joinable()) {
    thread_ = std::thread([shared = shared_] {
      std::unique_lock lock(shared->mutex);
      while (!shared->stopping) {
        if (!shared->running && !shared->waiting.empty())
          shared->run_one(lock, true);
        else
          shared->changed.wait(lock);
      }
    });
  }
  return std::make_unique<QueuedWork>(shared_, std::move(item));
}

void CommQueue::drain() {
  std::unique_lock lock(shared_->mutex);
  shared_->help_until(lock, [&] { return !shared_->running && shared_->waiting.empty(); });
}

void CommQueue::cancel() {
  std::unique_lock lock(shared_->mutex);
  shared_->cancel(lock);
}

}  // namespace muster::groups
