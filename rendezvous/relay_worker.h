// SPDX-License-Identifier: Apache-2.0
// StoreRelay::Worker: what a StoreRelay knows of one connection of a worker. A value of the relay's; for its
// own files only.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/store_relay.h"

namespace muster {

struct StoreRelay::Worker {
  enum class Mode {
    kFree,        ///< nothing is asked
    kAnswer,      ///< a request is under way
    kWaiting,     ///< waits at the coordinator
    kJoined,      ///< waits with another, whose Wait has it
    kFollowing,   ///< another took the element that this one waited for: waits for its next request
    kCancelling,  ///< CANCEL_WAIT is under way
    kDropping,    ///< likewise, and the worker does not expect an answer to it; then `next_mode`
    kRaw,         ///< watches keys: what comes may be no answer, and is passed on as it is
  };

  Worker(WorkerId number, const StoreRelayOptions& options, std::size_t window)
      : id(number), decoder(options.wire, options.legacy), stream(window) {}

  WorkerId id;
  wire::Decoder decoder;
  StoreStream stream;
  Mode mode = Mode::kFree;
  Mode next_mode = Mode::kFree;
  std::string out;             // for the worker, from taken
  std::size_t taken = 0;       // of out
  std::size_t unconsumed = 0;  // of the stream: still in out
  std::string wait;            // key in waits_, where it owns or has joined one
  std::string held;            // a request that came while it waits, for afterwards
  WorkerId leader = 0;         // while kFollowing
  std::vector<WorkerId> followers;
  std::string reason;  // it is to be closed
  bool paused = false;
  bool closing = false;  // it has gone
  bool close_sent = false;
  bool lost = false;      // the coordinator has no such channel
  bool resuming = false;  // waits for where the coordinator has got to
  bool in_turn = false;
  bool touched = false;
};

}  // namespace muster
