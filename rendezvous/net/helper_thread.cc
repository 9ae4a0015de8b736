// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/helper_thread.h"

#include <future>
#include <mutex>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "rendezvous/base/syscall.h"

namespace muster::net {

namespace asio = boost::asio;

struct HelperThread::State : std::enable_shared_from_this<State> {
  using WorkGuard = asio::executor_work_guard<asio::io_context::executor_type>;
  explicit State(asio::io_context& of) : loop(of) {}

  asio::io_context jobs{1};  // run by the thread
  const WorkGuard open{jobs.get_executor()};
  std::mutex mutex;
  bool running = false;
  bool closed = false;
  asio::io_context& loop;  // touched by the thread under the mutex, and only while not closed
  // Of the loop's thread alone.
  std::thread thread;
  int pending = 0;
  std::optional<WorkGuard> busy;

  void run(std::function<void()> work, std::function<void()> done) {
    {
      const std::lock_guard lock(mutex);
      if (closed) return;
      running = true;
    }
    work();
    work = nullptr;
    const std::lock_guard lock(mutex);
    running = false;
    if (closed) return;
    asio::post(loop, [self = shared_from_this(), done = std::move(done)] {
      if (self->closed) return;
      if (--self->pending == 0) self->busy.reset();
      done();
    });
  }
};

HelperThread::HelperThread(asio::io_context& loop) : state_(std::make_shared<State>(loop)) {}

HelperThread::~HelperThread() {
  bool running = false;
  {
    const std::lock_guard lock(state_->mutex);
    running = state_->running;
    state_->closed = true;
    state_->busy.reset();
  }
  state_->jobs.stop();
  if (!state_->thread.joinable()) return;
  if (running)
    state_->thread.detach();
  else
    state_->thread.join();  // ends at once, and frees what libraries keep for each thread
}

void HelperThread::wait() {
  if (!state_->thread.joinable()) return;
  const auto reached = std::make_shared<std::promise<void>>();
  asio::post(state_->jobs, [reached] { reached->set_value(); });
  reached->get_future().wait();
}

void HelperThread::post(std::function<void()> work, std::function<void()> done) {
  if (++state_->pending == 1) state_->busy.emplace(state_->loop.get_executor());
  asio::post(state_->jobs, [state = state_.get(), work = std::move(work), done = std::move(done)]() mutable {
    state->run(std::move(work), std::move(done));
  });
  if (state_->thread.joinable()) return;
  auto thread = start_quiet_thread([state = state_] { state->jobs.run(); });
  if (thread)
    state_->thread = *std::move(thread);
  else
    state_->jobs.poll();  // late, but it may be the search for a failure's cause
}

}  // namespace muster::net
