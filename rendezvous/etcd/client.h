// SPDX-License-Identifier: Apache-2.0
// etcd::Client: requests to one of several etcd members, and one watch, over HTTP connections (Boost.Beast).
// A request goes to the member that answered last, then to each of the others; connections are kept for the
// next request. Every request may reach etcd twice. Owned by Coordinator; one loop, one thread; callbacks
// come from the loop and never after the destructor. Failure: what each member that was tried said, with its
// address; kMismatch where all of them refuse. The caller tries again later, since an etcd that restarts is
// away for seconds.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <boost/asio/ts/netfwd.hpp>

#include <muster/result.h>

#include "rendezvous/etcd/messages.h"
#include "rendezvous/etcd/settings.h"

namespace muster::etcd {

/// "host:port,host:port", for messages.
[[nodiscard]] std::string member_list(const Settings& settings);

class Client {
 public:
  Client(boost::asio::io_context& loop, const Settings& settings);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Sends the request of `call`; done(Result<T>) takes what its answer is read as.
  template <class T, class Done>
  void ask(Call<T> call, Done done) {
    request(call.path, std::move(call.body),
            [done = std::move(done), parse = call.parse](const Result<std::string>& body) mutable {
              done(body ? parse(*body) : fail(body.error()));
            });
  }

  struct Watch {
    std::string key;
    std::string end;  ///< empty: `key` alone
    Revision from = 0;
    std::function<void(const WatchUpdate&)> on_update;
    /// Once, unless stop_watch() came first. Also when the member has lost its cluster, or when a request has
    /// found that another member answers better.
    std::function<void(const Error&)> on_end;
  };
  /// Replaces the watch before it.
  void watch(Watch watch);
  void stop_watch();

 private:
  void request(std::string_view path, std::string body, std::function<void(Result<std::string>)> done);

  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace muster::etcd
