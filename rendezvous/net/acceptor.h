// SPDX-License-Identifier: Apache-2.0
// Acceptor: takes connections from a listener's sockets, sets their options, and survives a lack of
// descriptors. Non-blocking; knows no event loop. Owned by the Server; one thread.
#pragma once

#include <functional>
#include <string>

#include "rendezvous/base/unique_fd.h"
#include "rendezvous/net/listener.h"

namespace muster::net {

class Acceptor {
 public:
  using Admit = std::function<void(UniqueFd)>;
  using Refused = std::function<void(const std::string& reason)>;

  /// `per_turn`: the most connections of each socket that one accept_some() takes, to keep the loop's turns
  /// short.
  explicit Acceptor(Listener listener, int per_turn = 64);

  /// Accepts what waits. `refused` gets the reason of each connection that had to be turned away, and errors.
  void accept_some(const Admit& admit, const Refused& refused);

  void close() { listener_.fds.clear(); }
  [[nodiscard]] const Listener& listener() const { return listener_; }

 private:
  void accept_from(int listener, const Admit& admit, const Refused& refused);
  bool turn_away(int listener, int error_number, const Refused& refused);

  Listener listener_;
  const int per_turn_;
  UniqueFd spare_fd_;  // given up for a moment when there is no other
};

}  // namespace muster::net
