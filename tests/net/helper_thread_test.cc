// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/helper_thread.h"

#include <condition_variable>
#include <mutex>
#include <pthread.h>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "rendezvous/base/lifetime.h"
#include "tests/support/catch.h"

using muster::Lifetime;
using muster::net::HelperThread;
namespace asio = boost::asio;

namespace {

/// Open once, then for ever.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

}  // namespace

TEST_CASE("where no thread can be had the loop does the work") {
  pthread_attr_t usual, vast;
  REQUIRE(::pthread_getattr_default_np(&usual) == 0);
  REQUIRE(::pthread_attr_init(&vast) == 0);
  REQUIRE(::pthread_attr_setstacksize(&vast, std::size_t{1} << 48) == 0);
  REQUIRE(::pthread_setattr_default_np(&vast) == 0);
  asio::io_context loop;
  HelperThread helper(loop);
  std::thread::id there;
  int got = 0;
  helper.run(
      [&there] {
        there = std::this_thread::get_id();
        return 7;
      },
      [&got](int value) { got = value; });
  REQUIRE(::pthread_setattr_default_np(&usual) == 0);
  loop.run();
  REQUIRE(got == 7);
  REQUIRE(there == std::this_thread::get_id());
}

TEST_CASE("the loop goes on while a job of the helper thread blocks, and gets its value afterwards") {
  asio::io_context loop;
  HelperThread helper(loop);
  const auto here = std::this_thread::get_id();
  auto gate = std::make_shared<Gate>();
  std::vector<std::string> order;
  helper.run(
      [gate, here] {
        gate->wait();
        return std::this_thread::get_id() != here;
      },
      [&](bool elsewhere) { order.emplace_back(elsewhere ? "done" : "done on the loop's thread"); });
  asio::post(loop, [&] {
    order.emplace_back("loop");
    gate->open();
  });
  loop.run();
  CHECK(order == std::vector<std::string>{"loop", "done"});
}

TEST_CASE("jobs of the helper thread run in order") {
  asio::io_context loop;
  HelperThread helper(loop);
  std::vector<int> order;
  for (int i = 0; i < 100; ++i)
    helper.run([i] { return i; }, [&order](int value) { order.push_back(value); });
  loop.run();
  REQUIRE(order.size() == 100);
  for (int i = 0; i < 100; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("a helper thread that is gone neither waits for its job nor answers it") {
  asio::io_context loop;
  auto gate = std::make_shared<Gate>();
  auto begun = std::make_shared<Gate>();
  bool answered = false;
  {
    HelperThread helper(loop);
    helper.run(
        [gate, begun] {
          begun->open();
          gate->wait();
        },
        [&] { answered = true; });
    begun->wait();
  }
  gate->open();
  loop.run();
  CHECK_FALSE(answered);
}

TEST_CASE("a guarded handler does nothing once its owner is gone") {
  int calls = 0;
  auto owner = std::make_unique<Lifetime>();
  auto handler = owner->guard([&](int value) { calls += value; });
  handler(1);
  owner->renew();
  handler(10);
  auto second = owner->guard([&](int value) { calls += value; });
  second(100);
  owner.reset();
  second(1000);
  CHECK(calls == 101);
}
