// SPDX-License-Identifier: Apache-2.0
// Lifetime: lets handlers that are still queued on the loop find out that their owner is gone. The owner has
// one as its last member and wraps each handler it hands out: timer_.async_wait(lifetime_.guard([this](auto
// error) { ... })). A guarded handler that comes after the owner's destruction does nothing. One loop, one
// thread: not thread-safe.
//
// This is the one way to wait in this tree: callbacks on one loop, guarded by the owner's Lifetime.
// Coroutines stand only within one .cc where a connection is a fixed sequence of steps (dial, handshake,
// request and response); they do not appear in headers. State machines with many events (agent, servers) are
// clearer as callbacks, and the store's server pays nothing per request for them.
#pragma once

#include <memory>
#include <utility>

#include <boost/asio/basic_waitable_timer.hpp>

#include "rendezvous/base/clock.h"

namespace muster {

using LoopTimer = boost::asio::basic_waitable_timer<SteadyClock>;

class Lifetime {
 public:
  Lifetime() = default;
  Lifetime(const Lifetime&) = delete;
  Lifetime& operator=(const Lifetime&) = delete;

  template <class Handler>
  [[nodiscard]] auto guard(Handler handler) const {
    return [token = std::weak_ptr<char>(token_),
            handler = std::move(handler)](auto&&... arguments) mutable -> void {
      if (!token.expired()) handler(std::forward<decltype(arguments)>(arguments)...);
    };
  }
  /// Calls `handler` at `when`, unless the timer is cancelled or set anew before: before it is due, for a
  /// handler that is queued already comes all the same.
  template <class Handler>
  void call_at(LoopTimer& timer, Instant when, Handler handler) const {
    timer.expires_at(when);
    timer.async_wait(guard([handler = std::move(handler)](const auto& error) mutable {
      if (!error) handler();
    }));
  }
  /// Calls `handler` when the descriptor can be read, unless that is closed before.
  template <class Descriptor, class Handler>
  void when_readable(Descriptor& descriptor, Handler handler) const {
    descriptor.async_wait(Descriptor::wait_read,
                          guard([handler = std::move(handler)](const auto& error) mutable {
                            if (!error) handler();
                          }));
  }
  /// The handlers that were handed out so far do nothing any more.
  void renew() { token_ = std::make_shared<char>(); }

 private:
  std::shared_ptr<char> token_ = std::make_shared<char>();
};

}  // namespace muster
