// SPDX-License-Identifier: Apache-2.0
// Connection: one accepted socket, its Session, and the bytes on their way out. Non-blocking; knows no event
// loop: the Server tells it when it may read or write. Owned by the Server; one thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"
#include "rendezvous/net/rejection_log.h"
#include "rendezvous/store/session.h"

namespace muster::net {

class Connection {
 public:
  /// What the Server has to do about it next.
  enum class Status {
    kOpen,
    kEnded,   ///< the peer closed in an orderly way, between two requests
    kFailed,  ///< close and log: reason()
    kOther,   ///< its first byte is the other protocol's: release() it
  };

  /// Of all connections of a server; outlives them.
  struct Shared {
    StoreCore& core;
    const SessionLimits& limits;
    std::string_view other_first_bytes;  ///< of the other protocol at this port
    TorchrunJobs* torchrun = nullptr;    ///< see Session
    const bool* hold = &kNeverHeld;      ///< while it is true nothing is sent: see send_held()
    static constexpr bool kNeverHeld = false;
  };
  Connection(UniqueFd fd, ClientId id, const Shared& shared);

  /// Reads once into `scratch`, answers, writes.
  Status on_readable(std::string& scratch, Effects& effects, Instant now);
  /// Writes on, and takes up input that was left because of unread answers.
  Status on_writable(Effects& effects, Instant now);
  /// Treats an undecided request of an old client as complete.
  Status settle(Effects& effects, Instant now);

  /// A byte string for the client that is not an answer to something just received; call flush() afterwards.
  [[nodiscard]] std::string& out() { return out_; }
  Status flush(Instant now);
  /// There are answers that flush() did not send because of `*hold`.
  [[nodiscard]] bool held() const { return *shared_.hold && sent_ < out_.size(); }
  /// Nothing is held any more: sends.
  Status send_held(Instant now);
  /// There is input that on_writable() would take up now.
  [[nodiscard]] bool left_input() const { return !unread_.empty() && !blocked(); }
  /// After kOther: the socket and what was read from it.
  [[nodiscard]] UniqueFd release(std::string& first_bytes);
  /// Sets reason(), before the Server closes it for one of its own.
  void give_up(Rejection kind, std::string reason) {
    rejection_ = kind;
    reason_ = std::move(reason);
  }
  /// True, and a reason is given, if it had to do something by now.
  bool time_is_up(Millis slow_reader_timeout, Millis first_byte_timeout);
  /// The peer may not use the store: bytes that are not the other protocol's end the connection, for this
  /// reason.
  void do_not_serve(std::string reason) { not_served_ = std::move(reason); }
  [[nodiscard]] bool served() const { return not_served_.empty(); }
  /// What has come, which is left alone, is no request to execute: nothing, the end, or for somebody else.
  [[nodiscard]] bool asks_nothing() const;

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const Session& session() const { return session_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] Rejection rejection() const {
    return session_.exceeded_limit() ? Rejection::kLimit : rejection_;
  }
  [[nodiscard]] bool undecided() const { return undecided_; }
  /// The socket takes no more; wait until it is writable, and do not read before.
  [[nodiscard]] bool blocked() const { return sent_ < out_.size(); }
  /// When the socket last took a byte of what is still waiting.
  [[nodiscard]] Instant last_progress() const { return last_progress_; }
  [[nodiscard]] std::size_t unsent_bytes() const { return out_.size() - sent_; }
  /// What is kept for the peer until it sends or reads more.
  [[nodiscard]] std::size_t buffered_bytes() const {
    return out_.size() + unread_.size() + session_.num_pending_bytes();
  }

 private:
  Status process(std::string_view input, Effects& effects, Instant now);
  Status failed(std::string reason);
  [[nodiscard]] bool is_other_protocol(char first) const;

  UniqueFd fd_;
  const Shared& shared_;
  Session session_;
  std::string out_;
  std::size_t sent_ = 0;  // of out_
  std::string unread_;    // input left alone until out_ is sent
  bool undecided_ = false;
  std::string not_served_;  // why; empty: it is served
  Rejection rejection_ = Rejection::kProtocol;
  Instant last_progress_{};
  std::string reason_;
};

}  // namespace muster::net
