// SPDX-License-Identifier: Apache-2.0
// HelperThread: one thread beside the loop for calls that may block: fdatasync, snapshots, TLS handshakes,
// searches of large files, slow file systems. Jobs run in the order they were given; each exchanges values
// with the loop, no memory is shared. The thread starts with the first job and blocks all signals; where none
// can be had, the loop does the work itself. Owned by the loop's thread, whose io_context outlives it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <boost/asio/ts/netfwd.hpp>

namespace muster::net {

class HelperThread {
 public:
  explicit HelperThread(boost::asio::io_context& loop);
  /// Ends an idle thread. Does not wait for a job: one that hangs in the kernel must not hold the process.
  /// Jobs that have not begun are dropped, and the `done` of one that runs is never called.
  ~HelperThread();
  HelperThread(const HelperThread&) = delete;
  HelperThread& operator=(const HelperThread&) = delete;

  /// Calls `work` on the thread, then `done` with what it returned on the loop, which stays alive until then.
  template <class Work, class Done>
  void run(Work work, Done done) {
    using Value = std::invoke_result_t<Work>;
    if constexpr (std::is_void_v<Value>) {
      post(std::move(work), std::move(done));
    } else {
      auto value = std::make_shared<std::optional<Value>>();
      post([value, work = std::move(work)]() mutable { value->emplace(work()); },
           [value, done = std::move(done)]() mutable { done(std::move(**value)); });
    }
  }
  /// Blocks until every job given so far has run; their `done` follow on the loop.
  void wait();

 private:
  struct State;
  void post(std::function<void()> work, std::function<void()> done);

  std::shared_ptr<State> state_;
};

}  // namespace muster::net
