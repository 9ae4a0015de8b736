// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/helper_thread.h"

#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

namespace muster::net {

namespace asio = boost::asio;

struct HelperThread::State {
  struct Job {
    std::function<void()> work;
    std::function<void()> done;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> jobs;
  bool running = false;
  bool closed = false;
  asio::io_context* loop = nullptr;  // touched by the thread under the mutex, and only while not closed
  // Of the loop's thread alone.
  std::thread thread;
  int pending = 0;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> busy;

  void answered() {
    if (--pending == 0) busy.reset();
  }

  static void serve(const std::shared_ptr<State>& self) {
    for (std::unique_lock lock(self->mutex);;) {
      self->changed.wait(lock, [&] { return self->closed || !self->jobs.empty(); });
      if (self->closed) return;
      Job job = std::move(self->jobs.front());
      self->jobs.pop_front();
      self->running = true;
      lock.unlock();
      job.work();
      job.work = nullptr;
      lock.lock();
      self->running = false;
      if (self->closed) return;
      if (self->jobs.empty()) self->changed.notify_all();
      asio::post(*self->loop, [self, done = std::move(job.done)] {
        if (self->closed) return;
        self->answered();
        done();
      });
    }
  }
};

std::thread start_quiet_thread(std::function<void()> work) {
  struct Blocked {
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  };
  const Blocked blocked;
  return std::thread(std::move(work));
}

HelperThread::HelperThread(asio::io_context& loop) : state_(std::make_shared<State>()) {
  state_->loop = &loop;
}

HelperThread::~HelperThread() {
  bool running = false;
  {
    const std::lock_guard lock(state_->mutex);
    running = state_->running;
    state_->closed = true;
    state_->jobs.clear();
    state_->busy.reset();
    state_->changed.notify_one();
  }
  if (!state_->thread.joinable()) return;
  if (running)
    state_->thread.detach();
  else
    state_->thread.join();  // ends at once, and frees what libraries keep for each thread
}

void HelperThread::wait() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->jobs.empty() && !state_->running; });
}

void HelperThread::post(std::function<void()> work, std::function<void()> done) {
  if (++state_->pending == 1) state_->busy.emplace(state_->loop->get_executor());
  {
    const std::lock_guard lock(state_->mutex);
    state_->jobs.push_back({std::move(work), std::move(done)});
  }
  state_->changed.notify_one();
  if (state_->thread.joinable()) return;
  state_->thread = start_quiet_thread([state = state_] { State::serve(state); });
}

}  // namespace muster::net
