// SPDX-License-Identifier: Apache-2.0
// HttpRequest: the head of one HTTP/1 request as its bytes come, in pieces of any size; a body is not read.
// Sans-IO; Boost.Beast's parser behind a pimpl, since its headers take seconds to compile. Owned by a
// StatusServer's connection; one thread. Failure: kProtocol where the bytes are no request, kExhausted where
// its head is longer than kMaxHeadBytes; both are final. Source: RFC 9112.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <muster/result.h>

namespace muster::net {

class HttpRequest {
 public:
  static constexpr std::size_t kMaxHeadBytes = 8192;

  HttpRequest();
  ~HttpRequest();
  HttpRequest(HttpRequest&&) noexcept;
  HttpRequest& operator=(HttpRequest&&) noexcept;

  /// True once the head is whole; what comes then is not looked at.
  [[nodiscard]] Result<bool> receive(std::string_view bytes);

  // Once it is.
  [[nodiscard]] const std::string& method() const;
  /// The target up to its query.
  [[nodiscard]] std::string_view path() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The whole answer, after which the connection is closed. `fields`: further ones, each a line with its end.
/// `head_only`: for HEAD.
[[nodiscard]] std::string http_reply(int status, std::string_view type, std::string_view body,
                                     std::string_view fields, bool head_only);

}  // namespace muster::net
