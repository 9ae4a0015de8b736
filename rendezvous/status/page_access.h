// SPDX-License-Identifier: Apache-2.0
// PageAccess: who may see a page of a StatusServer, and what a browser is told about it. Without a secret
// everybody who asks for this host by its own name; with one who also shows the token made of it. Owned by
// whoever answers the requests; one thread. A refusal is a reply that says what to do.
// Source: RFC 6265bis (SameSite), W3C's Content-Security-Policy; the name is checked against DNS rebinding.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/protocol/auth.h"
#include "rendezvous/status/status_server.h"

namespace muster::net {

/// HMAC-SHA256 of `page`, keyed with the secret, in hexadecimal digits.
[[nodiscard]] std::string page_token(const auth::Secret& secret, std::string_view page);

/// Whether the `host` of a request names this host: so that a page elsewhere, whose name leads here, does not
/// read this one. `listening`: HOST:PORT. `names`: of this host.
[[nodiscard]] bool is_own_host(std::string_view host, std::string_view listening,
                               std::span<const std::string> names);

class PageAccess {
 public:
  enum class Scripts { kNone, kOwn };  // kOwn: those of the page itself, which may ask this server

  /// `listening`: HOST:PORT. `host`: a further name of this host.
  explicit PageAccess(std::string listening, std::string host = {});

  /// Empty: none is needed.
  void set_token(std::string token) { token_ = std::move(token); }
  /// Nothing: the request may be answered.
  [[nodiscard]] std::optional<StatusReply> refusal(const StatusRequest& request) const;
  /// `html`, where "{nonce}" becomes one that is used once; nothing is loaded. Who brought the token in the
  /// address gets it as a cookie.
  [[nodiscard]] StatusReply page(const StatusRequest& request, std::string html,
                                 Scripts scripts = Scripts::kNone) const;
  [[nodiscard]] std::string url() const;

 private:
  [[nodiscard]] std::string cookie_name() const;

  std::string listening_;
  std::vector<std::string> names_;
  std::string token_;
};

}  // namespace muster::net
