// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/status/page_access.h"

#include <algorithm>
#include <utility>

#include <boost/algorithm/string/predicate.hpp>
#include <boost/algorithm/string/replace.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/host_name.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/crypto.h>

#include "rendezvous/base/split.h"

namespace muster::net {
namespace {

/// "host" of "host:80", and of "[::1]:80" what is in the brackets.
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

/// In time that does not depend on where they differ.
bool equal(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view cookie_value(std::string_view cookies, std::string_view name) {
  for (std::string_view pair : split(cookies, ';'))
    if (trimmed(take_front(pair, '=')) == name) return pair;
  return {};
}

}  // namespace

std::string page_token(const auth::Secret& secret, std::string_view page) {
  return fmt::format("{:02x}", fmt::join(secret.mac("status page", page), ""));
}

bool is_own_host(std::string_view host, std::string_view listening, std::span<const std::string> names) {
  const std::string_view name = without_port(host), bound = without_port(listening);
  if (boost::iequals(name, "localhost") || name == "127.0.0.1" || name == "::1") return true;
  boost::system::error_code error;
  (void)boost::asio::ip::make_address(std::string(name), error);
  if (!error) return bound == "0.0.0.0" || bound == "::" || name == bound;
  return std::ranges::any_of(
      names, [&](const std::string& own) { return !own.empty() && boost::iequals(name, own); });
}

PageAccess::PageAccess(std::string listening, std::string host) : listening_(std::move(listening)) {
  boost::system::error_code error;
  const std::string name = boost::asio::ip::host_name(error);
  names_ = {name, name.substr(0, name.find('.')), std::string(without_port(listening_)), std::move(host)};
}

std::optional<StatusReply> PageAccess::refusal(const StatusRequest& request) const {
  if (!is_own_host(request.host, listening_, names_))
    return plain_reply(
        403, fmt::format("nothing is served under this name; ask for it at http://{}/\n", listening_));
  if (token_.empty()) return std::nullopt;
  constexpr std::string_view kBearer = "Bearer ";
  const std::string asked = query_value(request.query, "token").value_or("");
  const std::string_view bearer =
      request.authorization.starts_with(kBearer) ? request.authorization.substr(kBearer.size()) : "";
  if (equal(asked, token_) || equal(bearer, token_) ||
      equal(cookie_value(request.cookie, cookie_name()), token_))
    return std::nullopt;
  return plain_reply(401, "this needs the token that was printed with the page's address at the start\n");
}

StatusReply PageAccess::page(const StatusRequest& request, std::string html, Scripts scripts) const {
  const std::string nonce = auth::random_secret_text();
  boost::replace_all(html, "{nonce}", nonce);
  StatusReply out{.type = "text/html; charset=utf-8", .body = std::move(html)};
  const std::string own =
      scripts == Scripts::kOwn ? fmt::format("script-src 'nonce-{}'; connect-src 'self'; ", nonce) : "";
  out.headers = {
      {"Content-Security-Policy",
       fmt::format("default-src 'none'; style-src 'nonce-{}'; {}base-uri 'none'; form-action 'none'; "
                   "frame-ancestors 'none'",
                   nonce, own)},
      {"Referrer-Policy", "no-referrer"},
      {"X-Frame-Options", "DENY"}};
  if (!token_.empty() && query_value(request.query, "token"))
    out.headers.emplace_back("Set-Cookie",
                             fmt::format("{}={}; Path=/; HttpOnly; SameSite=Strict", cookie_name(), token_));
  return out;
}

std::string PageAccess::url() const {
  return token_.empty() ? fmt::format("http://{}/", listening_)
                        : fmt::format("http://{}/?token={}", listening_, token_);
}

/// A host's cookies go to all of its ports.
std::string PageAccess::cookie_name() const {
  return fmt::format("muster_{}", listening_.substr(listening_.rfind(':') + 1));
}

}  // namespace muster::net
