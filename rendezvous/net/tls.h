// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 as a machine without I/O: bytes from the network in, plain bytes and bytes for the network out. A
// Context is a certificate with its key and whom to trust, read once and shared; a Stream is one connection
// of it. One thread. Failure: kInvalidArgument for files, kMismatch where the other side cannot be trusted or
// does not trust us; a Stream's first error is kept, and what it left to send tells the other side.
// Source: OpenSSL 3 (SSL_CTX_new(3), BIO_s_mem(3)); RFC 8446.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <muster/result.h>

struct ssl_st;
struct ssl_ctx_st;

namespace muster::tls {

/// Of a TLS connection's first record.
inline constexpr char kFirstByte = '\x16';

/// PEM files.
struct Files {
  std::string cert;  ///< the certificate, and those between it and the root
  std::string key;   ///< readable by its owner alone
  std::string ca;    ///< whom to trust
  std::array<const char*, 3> names{"--tls-cert", "--tls-key", "--tls-ca"};  ///< as the user gave them
};

class Context {
 public:
  /// Needs cert and key. With `ca` a client has to show a certificate signed by it.
  [[nodiscard]] static Result<Context> server(const Files& files);
  /// Needs ca. cert and key are shown to a server that asks for them.
  [[nodiscard]] static Result<Context> client(const Files& files);

  /// Clients have to show a certificate.
  [[nodiscard]] bool asks_for_certificate() const;

  /// For Asio's stream: one more reference to OpenSSL's own object, which the caller gives back.
  [[nodiscard]] ssl_ctx_st* share() const;

 private:
  friend class Stream;
  [[nodiscard]] static Result<Context> make(const Files& files, bool is_server);
  explicit Context(std::shared_ptr<ssl_ctx_st> context) : context_(std::move(context)) {}
  std::shared_ptr<ssl_ctx_st> context_;
};

/// A client's connection: `server_name`, a name or an address, is the one that the server's certificate must
/// be for.
void expect_server(ssl_st* ssl, const std::string& server_name);
/// Why this end did not accept the other's certificate; nothing: it did, or it has not seen one.
[[nodiscard]] std::optional<std::string> rejected_certificate(const ssl_st* ssl);

class Stream {
 public:
  /// `server_name`: for a client, the name or address that the server's certificate must be for.
  explicit Stream(const Context& context, const std::string& server_name = {});

  /// A client's first words. Call it once, before anything else.
  [[nodiscard]] Result<void> start(std::string& out);
  /// Takes bytes from the network; appends plain ones to `plain` and what has to be sent to `out`.
  [[nodiscard]] Result<void> receive(std::string_view bytes, std::string& plain, std::string& out);
  /// Before the other side is known the bytes are kept, and sent by a later receive().
  [[nodiscard]] Result<void> send(std::string_view plain, std::string& out);

  /// The same 32 bytes at both ends of this connection and at no end of any other: who relays between two
  /// connections has two. Empty before it is established. Source: RFC 9266 (tls-exporter).
  [[nodiscard]] std::string channel_binding() const;

  /// Both sides are known to each other as far as they asked for.
  [[nodiscard]] bool established() const;

 private:
  [[nodiscard]] Error broken();
  [[nodiscard]] Result<void> take(std::string& plain);
  [[nodiscard]] Result<void> write(std::string_view plain);

  std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
  std::string unsent_;  // plain, until established
  std::optional<Error> failure_;
};

}  // namespace muster::tls
