// SPDX-License-Identifier: Apache-2.0
// AddressRace: which of a node's addresses answers from here. They are tried in their order, the next one
// when the one before failed or was silent for a moment; the first that answers wins, the others are given
// up. One loop; owned by the launcher's rendezvous. Failure: what went wrong with each of them.
// Source: RFC 8305 (Happy Eyeballs), without its sorting.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/ts/netfwd.hpp>

#include <muster/result.h>

#include "rendezvous/base/clock.h"

namespace muster::net {

class AddressRace {
 public:
  struct Answer {
    std::string address;        ///< as it was given
    std::string local_address;  ///< of this end of the connection, numeric; empty: it was refused

    friend bool operator==(const Answer&, const Answer&) = default;
  };
  struct Options {
    std::vector<std::string> addresses;
    std::uint16_t port = 0;
    Millis head_start{250};  ///< of each address before the next
    Millis limit{30'000};    ///< kTimeout afterwards
    /// Nobody need listen there: a host that refuses has been reached.
    bool refusal_answers = false;
  };

  /// Begins. `finished` comes once, from the loop, and never after the destructor.
  AddressRace(boost::asio::io_context& loop, Options options, std::function<void(Result<Answer>)> finished);
  ~AddressRace();
  AddressRace(const AddressRace&) = delete;
  AddressRace& operator=(const AddressRace&) = delete;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace muster::net
