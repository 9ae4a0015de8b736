// SPDX-License-Identifier: Apache-2.0
// Authentication of a control connection: both sides prove that they know the job's secret, by HMAC-SHA256
// over everything both have said so far (versions, job, host, both nonces) under a label of their role. So a
// proof is worth nothing on another connection, for another job, or sent back to its maker. Pure machines:
// the nonces are arguments. The agent proves first: who only connects learns nothing to try secrets on.
// It authenticates the beginning of a connection; against who can change packets on their way it needs TLS.
// Under TLS the proofs are bound to that one TLS connection (RFC 9266): who relays between two, though he has
// a certificate that the agent trusts, makes both of them worthless.
// Source: RFC 2104 (HMAC); the pattern is SCRAM's (RFC 5802) without its key derivation: a secret is random.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <muster/result.h>

#include "rendezvous/base/env.h"
#include "rendezvous/protocol/control.h"

namespace muster::auth {

/// The bytes both sides know. No text of it is ever made; wiped when it goes.
class Secret {
 public:
  /// kInvalidArgument: shorter than kMinBytes.
  [[nodiscard]] static Result<Secret> from_bytes(std::string_view bytes);
  /// The file's content without the white space at its ends. kInvalidArgument too where others than its owner
  /// may read it.
  [[nodiscard]] static Result<Secret> from_file(const std::string& path);
  Secret(const Secret&) = default;
  Secret(Secret&& other) noexcept;
  Secret& operator=(const Secret&) = default;
  Secret& operator=(Secret&& other) noexcept;
  ~Secret();

  [[nodiscard]] control::Mac mac(std::string_view label, std::string_view transcript) const;

  static constexpr std::size_t kMinBytes = 16;

 private:
  explicit Secret(std::string_view bytes) : bytes_(bytes) {}
  std::string bytes_;
};

/// The secret in `file`, or in MUSTER_SECRET where no file is given; never from the command line, which every
/// user of the host can read. Nothing: neither is given.
[[nodiscard]] Result<std::optional<Secret>> find_secret(const std::string& file,
                                                        const Environment& environment);

/// From the system's generator; aborts where there is none.
[[nodiscard]] control::Nonce random_nonce();
/// 32 bytes as 64 hexadecimal digits, for a secret that a launcher hands out.
[[nodiscard]] std::string random_secret_text();
[[nodiscard]] membership::NodeId random_node_id();

/// With what a refusal of such a proof begins.
inline constexpr std::string_view kOtherSecret = "has another secret, or none";

/// The coordinator's side. Calls in this order, each once: preamble, start, proof.
class ServerHandshake {
 public:
  explicit ServerHandshake(const control::Nonce& nonce) : nonce_(nonce) {}

  /// `mine` is the answer sent to `theirs`. `binding`: of the TLS connection; empty: there is none.
  void preamble(const control::Preamble& theirs, const control::Preamble& mine,
                std::string_view binding = {});
  [[nodiscard]] control::Challenge start(const control::Start& start, std::optional<Secret> secret);
  /// The MAC of Welcome; kMismatch when the agent does not know the secret.
  [[nodiscard]] Result<control::Mac> proof(const control::Proof& proof);

 private:
  control::Nonce nonce_;
  std::optional<Secret> secret_;
  std::string transcript_;
  bool bound_ = false;
};

/// The agent's side. Calls in this order, each once: start, preamble, challenge, welcome.
class ClientHandshake {
 public:
  ClientHandshake(std::optional<Secret> secret, const control::Nonce& nonce)
      : secret_(std::move(secret)), nonce_(nonce) {}

  [[nodiscard]] control::Start start(const control::Preamble& mine, std::string job, std::string host);
  void preamble(const control::Preamble& theirs, std::string_view binding = {});
  /// kMismatch when one side has a secret and the other none.
  [[nodiscard]] Result<control::Proof> challenge(const control::Challenge& challenge);
  /// kMismatch when the coordinator does not know the secret.
  [[nodiscard]] Result<void> welcome(const control::Welcome& welcome) const;

 private:
  std::optional<Secret> secret_;
  control::Nonce nonce_;
  control::Preamble mine_;
  control::Start start_;
  std::string transcript_;
};

}  // namespace muster::auth
