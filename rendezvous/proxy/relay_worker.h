// SPDX-License-Identifier: Apache-2.0
// StoreRelay::Worker: what a StoreRelay knows of one connection of a worker. A value of the relay's; for its
// own files only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/proxy/answer_prefix.h"
#include "rendezvous/proxy/store_relay.h"

namespace muster {

/// A worker is not listened to while so much of what it said is not on its way.
inline constexpr std::size_t kMaxUnsentBytes = std::size_t{1} << 20;

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

  /// From `begin` to the end of what is written: a request that has an answer.
  void asked(std::uint64_t begin) {
    asked_begin = begin;
    asked_end = stream.end();
  }

  /// What is before `done` and needs no answer any more.
  [[nodiscard]] std::uint64_t settled(std::uint64_t done) const {
    const bool open = incarnation != 0 && !closing &&
                      (mode == Mode::kAnswer || mode == Mode::kWaiting || mode == Mode::kCancelling ||
                       mode == Mode::kDropping);
    return open ? std::min(done, asked_begin) : done;
  }

  WorkerId id;
  wire::Decoder decoder;
  StoreStream stream;
  Mode mode = Mode::kFree;
  Mode next_mode = Mode::kFree;
  // Of the stream, for a coordinator's next process.
  std::uint64_t incarnation = 0;  // of the store, whose answers these are
  std::uint64_t asked_begin = 0;  // of the last request that has an answer
  std::uint64_t asked_end = 0;
  std::uint64_t cancel_end = 0;  // of the last CANCEL_WAIT
  AnswerPrefix answer;           // to that request
  std::string out;               // for the worker, from taken
  std::size_t taken = 0;         // of out
  std::size_t unconsumed = 0;    // of the stream: still in out
  std::string wait;              // key in waits_, where it owns or has joined one
  std::string held;              // a request that came while it waits, for afterwards
  WorkerId leader = 0;           // while kFollowing
  std::vector<WorkerId> followers;
  std::string reason;  // it is to be closed
  bool paused = false;
  bool closing = false;  // it has gone
  bool close_sent = false;
  bool last_word_asked = false;
  bool lost = false;      // the coordinator has no such channel
  bool resuming = false;  // waits for where the coordinator has got to
  bool in_turn = false;
  bool touched = false;
};

}  // namespace muster
