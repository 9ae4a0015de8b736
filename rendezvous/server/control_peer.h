// SPDX-License-Identifier: Apache-2.0
// ControlPeer: one agent's connection at the coordinator: its socket, decoder, handshake and the bytes on
// their way out, under TLS where the coordinator has it. Non-blocking; knows no event loop: the ControlServer
// says when to read and write. One thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/unique_fd.h"
#include "rendezvous/net/rejection_log.h"
#include "rendezvous/net/tls.h"
#include "rendezvous/protocol/auth.h"
#include "rendezvous/protocol/control.h"
#include "rendezvous/protocol/job_secrets.h"

namespace muster::net {

/// As what a refusal is logged.
[[nodiscard]] Rejection kind_of(control::Refused::Reason reason);

class ControlPeer {
 public:
  enum class Stage {
    kPreamble,
    kStart,
    kProof,
    kOpen,     ///< messages are for Jobs
    kClosing,  ///< what it still sends is not read; it closes, or is closed
  };

  /// `tls`: it has to speak TLS.
  ControlPeer(int fd, std::string name, const control::Limits& limits, const control::Nonce& nonce,
              const std::optional<tls::Context>& tls);

  /// What the peer's messages before kOpen led to.
  struct Step {
    std::optional<control::Message> message;  ///< for Jobs, while kOpen
    std::optional<control::Refused> refused;  ///< tell it and close
    std::string error;                        ///< not empty: it broke the protocol, close
    bool need_more = false;                   ///< all input is used
    bool opened = false;                      ///< it has proven what it has to
  };
  struct HandshakeOptions {
    const std::optional<auth::Secret>& secret;
    std::uint32_t heartbeat_ms;
    const std::string& software;
    const control::Limits& limits;
    std::uint32_t reconnect_ms = 0;
    const JobSecrets* job_secrets = nullptr;  ///< before `secret`, for the jobs that have one there
    bool proves_otherwise = false;  ///< an agent of a job without any secret has shown a certificate
  };
  /// What the peer sent, as it meant it: `plain` may be used for it, and holds what is returned. Fails where
  /// TLS does.
  [[nodiscard]] Result<std::string_view> decrypt(std::string_view bytes, std::string& plain);
  [[nodiscard]] Step next(std::string_view& input, const HandshakeOptions& options);

  /// What it sends belongs to a TLS handshake, which is for another thread: lent until take_back().
  [[nodiscard]] bool is_in_tls_handshake() const { return tls_ && !lent_ && !tls_->established(); }
  [[nodiscard]] std::shared_ptr<tls::Stream> lend_tls() {
    lent_ = true;
    ++num_lent_;
    return tls_;
  }
  /// `out`: what that stream has to send.
  void take_back_tls(std::string_view out) {
    lent_ = false;
    out_ += out;
  }
  /// It is to be asked and told nothing now.
  [[nodiscard]] bool tls_is_lent() const { return lent_; }
  [[nodiscard]] int num_lent() const { return num_lent_; }

  void send(std::string_view bytes);
  void send(const control::Preamble& preamble) { send_encoded(preamble); }
  void send(const control::Message& message) { send_encoded(message); }
  /// Sends what the socket takes. Empty, or why it is broken.
  [[nodiscard]] std::string flush();
  /// Of the send() that flush() told of.
  [[nodiscard]] int send_error() const { return send_error_; }
  [[nodiscard]] bool blocked() const { return sent_ < out_.size(); }
  [[nodiscard]] std::size_t unsent_bytes() const { return out_.size() - sent_; }
  /// What is kept for the peer until it sends or reads more.
  [[nodiscard]] std::size_t buffered_bytes() const { return out_.size() + decoder_.num_pending_bytes(); }

  Stage stage = Stage::kPreamble;
  bool waits_writable = false;

  [[nodiscard]] const std::string& name() const { return name_; }
  /// Its address without the port.
  [[nodiscard]] std::string address() const;
  /// Empty: it takes part in none, and may only look in.
  [[nodiscard]] const std::string& job() const { return job_; }
  /// What it has proven counts for its job and no other.
  [[nodiscard]] bool proved_own_secret() const { return own_secret_; }
  /// "n3 (10.0.0.4)" once it has said so, for people.
  [[nodiscard]] std::string title() const;

 private:
  template <class T>
  void send_encoded(const T& what) {
    std::string bytes;
    control::encode(what, bytes);
    send(bytes);
  }
  [[nodiscard]] Step take_start(const control::Start& start, const HandshakeOptions& options);

  int fd_;  // the ControlServer's
  std::string name_;
  std::shared_ptr<tls::Stream> tls_;  // nullptr: it speaks none
  int num_lent_ = 0;
  bool lent_ = false;
  control::Decoder decoder_;
  auth::ServerHandshake handshake_;
  std::string job_;
  bool own_secret_ = false;  // the job's, not the one of all jobs
  std::string host_;
  std::string out_;
  int send_error_ = 0;
  std::size_t sent_ = 0;
};

}  // namespace muster::net
