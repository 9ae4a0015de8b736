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
#include <thread>

#include <muster/process_group.h>

namespace muster::groups {

class CommQueue {
 public:
  /// `own_thread`: it runs beside the caller's computation, so it must not spin on a core.
  using Operation = std::function<Result<void>(bool own_thread)>;

  CommQueue();
  ~CommQueue();
  CommQueue(const CommQueue&) = delete;
  CommQueue& operator=(const CommQueue&) = delete;

  /// The Work may outlive the queue; it then reports kCancelled unless it had ended.
  [[nodiscard]] std::unique_ptr<Work> start(Operation operation);

  /// Returns when nothing is outstanding; runs it on this thread where possible.
  void drain();

  /// Operations not begun end with kCancelled, and so does every later one.
  void cancel();

  /// True while the queue's own thread runs an operation.
  [[nodiscard]] bool busy() const;

  /// Cancels, waits for the running operation and ends the thread.
  void join();

 private:
  struct Shared;
  struct Item;
  class QueuedWork;

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace muster::groups
