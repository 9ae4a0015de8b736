// SPDX-License-Identifier: Apache-2.0
// Session: one connection of the store as a machine: bytes in -> operations on the core -> bytes out, for
// itself; what others must learn is in the core's woken(). No I/O, no clock. Owned by its connection; one
// thread; lives no longer than the core. Failure: kClose with a reason for people; the replies made before it
// may still be sent. Cost with decoding and core (callgrind, g++ 12 -O2, keys of 24 bytes, values of 64): 800
// instructions a GET, 950 a SET, 1050 an ADD. musterd spends 5.6 us of processor time on a GET, 5.2 of them
// in recv and send.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/store/store_core.h"
#include "rendezvous/store/torchrun_jobs.h"
#include "rendezvous/store/wire.h"
#include "rendezvous/store/wire_decoder.h"

namespace muster {

struct SessionLimits {
  wire::Limits wire;
  StoreLimits store;  ///< of the core, the same for all of its sessions
  /// A reply may be this long; a client whose unread replies are longer is closed.
  std::size_t max_output_bytes = std::size_t{256} << 20;
  /// receive() pauses when this much output is waiting, so that a client which sends and never reads costs no
  /// more.
  std::size_t pause_output_bytes = std::size_t{1} << 20;
  /// What clients of PyTorch up to 2.1 are taken for: kLegacy to find out, or kTorch20 or kTorch21.
  wire::Generation legacy = wire::Generation::kLegacy;
};

class Session {
 public:
  enum class State {
    kNeedInput,   ///< every byte was taken
    kOutputFull,  ///< send `out` first, then call again with the rest of the input
    kUndecided,   ///< as kNeedInput; call settle() if the peer stays silent for a moment
    kClose,       ///< close the connection: close_reason()
  };

  /// `torchrun`: learns of clients that are agents of torchrun; nullptr: nobody does.
  Session(ClientId id, StoreCore& core, const SessionLimits& limits, TorchrunJobs* torchrun = nullptr);
  ~Session() { core_.disconnect(id_); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Takes bytes from the front of `input`, appends replies to `out`.
  [[nodiscard]] State receive(std::string_view& input, std::string& out);

  /// See State::kUndecided.
  [[nodiscard]] State settle(std::string& out);

  [[nodiscard]] const std::string& close_reason() const { return close_reason_; }
  /// It was closed because of StoreLimits, not for what it said.
  [[nodiscard]] bool exceeded_limit() const { return exceeded_limit_; }
  [[nodiscard]] wire::Generation generation() const { return decoder_.generation(); }
  /// The peer may go without anybody being told: no request is half sent.
  [[nodiscard]] bool between_requests() const { return !decoder_.in_request(); }
  [[nodiscard]] std::string_view current_op() const { return decoder_.current_op(); }
  /// Kept of a request that is not whole.
  [[nodiscard]] std::size_t num_pending_bytes() const { return decoder_.num_pending_bytes(); }
  [[nodiscard]] std::uint64_t num_requests() const { return decoder_.num_requests(); }

 private:
  State execute(const wire::Request& request, std::string& out);
  State close(std::string reason);
  State too_long(wire::Op op, std::size_t reply_bytes);

  ClientId id_;
  StoreCore& core_;
  TorchrunJobs* torchrun_;
  SessionLimits limits_;
  wire::Decoder decoder_;
  bool exceeded_limit_ = false;
  std::string close_reason_;
};

}  // namespace muster
