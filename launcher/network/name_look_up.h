// SPDX-License-Identifier: Apache-2.0
// NameLookUp: the addresses of a host, as this host's resolver says, within a time: getaddrinfo may take a
// minute where no name server answers. Asynchronous on the agent's loop, whose resolver has a thread of its
// own. Owned by who asks. Failure: no addresses; whoever connects to the name says why.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

namespace muster::launcher {

class NameLookUp {
 public:
  using Found = std::function<void(const std::vector<std::string>& addresses)>;

  explicit NameLookUp(boost::asio::io_context& io);
  ~NameLookUp();
  NameLookUp(const NameLookUp&) = delete;
  NameLookUp& operator=(const NameLookUp&) = delete;

  /// Once. `found` comes once, later, and not after the destructor.
  void start(const std::string& host, Found found);

 private:
  boost::asio::ip::tcp::resolver resolver_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<Found> found_;  // empty: it was told
};

}  // namespace muster::launcher
