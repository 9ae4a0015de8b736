// SPDX-License-Identifier: Apache-2.0
// TcpMesh: one connection to every other member, and messages on them. send() and receive() only note what is
// to be done; run() does it, all peers at once in both directions, until a deadline. Each message is a frame:
// u64 kind, u64 length, payload; a peer that fails sends a failure frame with its reason between two
// messages. Owned by a tcp group; one thread at a time, fail_peers() from any thread: it ends a run() that is
// under way. The destructor closes and never blocks. Failure: kPeerGone (closed), kTimeout (silent),
// kProtocol, or the peer's own reason; all name the ranks.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <sys/uio.h>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::groups {

class TcpMesh {
 public:
  struct Peer {
    UniqueFd socket;  // connected, non-blocking; none for this member itself
    int rank = -1;    // global, for error texts
  };

  explicit TcpMesh(std::vector<Peer> peers);

  /// Queues one message, of no bytes none. The bytes stay where they are until run() returned.
  void send(std::size_t member, const void* data, std::size_t size);
  /// Expects one message of exactly this size. In the order of the calls, as far as one member is concerned.
  void receive(std::size_t member, void* data, std::size_t size);

  /// Moves everything queued. Where a peer is gone the others get a moment to deliver what they have, so that
  /// a message which explains the failure is not lost. After a failure arrived() tells what came.
  [[nodiscard]] Result<void> run(Instant deadline);

  /// True if everything queued by receive() for the member has come.
  [[nodiscard]] bool arrived(std::size_t member) const { return links_[member].receives.empty(); }

  /// Tells every peer why this rank stops, as far as its connection is between two messages and takes it at
  /// once. run() fails from now on (kCancelled), also where another thread is waiting in it.
  void fail_peers(const Error& error);

 private:
  struct Frame {
    std::uint64_t kind, length;
  };
  struct Outgoing {
    Frame frame;
    const std::byte* data;
    std::size_t done;  // bytes of frame and payload that are sent
  };
  struct Incoming {
    std::byte* data;
    std::size_t size;
  };
  struct Link : Peer {
    std::deque<Outgoing> sends;
    std::deque<Incoming> receives;
    std::array<std::byte, sizeof(Frame)> header{};
    std::size_t header_done = 0;
    std::size_t payload_done = 0;
    std::string reason;  // payload of a failure frame, while it comes
    std::optional<Error> failure;
    bool sends_lost = false;   // the peer takes no more: run() must not report what was dropped as sent
    bool mid_message = false;  // guarded by sending_: a frame went out in part
  };

  void write_some(Link& link);
  void read_some(Link& link);
  /// The header is complete: what follows?
  void begin_payload(Link& link);
  void end_payload(Link& link);
  void drop(Link& link, ErrorCode code, std::string why);
  [[nodiscard]] Result<void> outcome() const;

  std::vector<Link> links_;
  std::mutex sending_;                 // fail_peers() may come from another thread
  std::atomic<bool> stopped_ = false;  // set with sending_ held: nothing follows a failure frame
  UniqueFd wake_;                      // an eventfd, readable once stopped_: ends run()'s wait
};

}  // namespace muster::groups
