// SPDX-License-Identifier: Apache-2.0
// HttpAnswer: one HTTP/1.1 response as its bytes come, in pieces of any size. Sans-IO; Boost.Beast's parser
// behind a pimpl, since its headers take seconds to compile. Owned by EtcdClient; one thread. Failure:
// kProtocol where the bytes are no response, kExhausted where its head or the body that nobody has taken is
// too long; both are final. Source: RFC 9112.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <muster/result.h>

namespace muster::net {

class HttpAnswer {
 public:
  /// `max_body_bytes`: of the body that was not taken yet. The head may have kMaxHeadBytes.
  explicit HttpAnswer(std::size_t max_body_bytes);
  ~HttpAnswer();
  HttpAnswer(HttpAnswer&&) noexcept;
  HttpAnswer& operator=(HttpAnswer&&) noexcept;
  static constexpr std::size_t kMaxHeadBytes = 16384;

  [[nodiscard]] Result<void> receive(std::string_view bytes);
  /// The connection has ended; kPeerGone if the answer has not.
  [[nodiscard]] Result<void> end();

  /// status() is known.
  [[nodiscard]] bool head_done() const;
  [[nodiscard]] int status() const;
  [[nodiscard]] bool done() const;
  /// Once it is done: the connection can take another request.
  [[nodiscard]] bool keeps_connection() const;
  /// What has come of the body since the last call.
  [[nodiscard]] std::string take_body();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// A POST of JSON. `host`: of the Host field. `fields`: further ones, each a line with its end.
[[nodiscard]] std::string http_post(std::string_view host, std::string_view path, std::string_view body,
                                    std::string_view fields = {});

}  // namespace muster::net
