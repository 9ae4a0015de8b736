// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/http_answer.h"

#include <limits>
#include <optional>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <fmt/format.h>

namespace muster::net {
namespace {

namespace http = boost::beast::http;
using boost::beast::string_view;
using boost::system::error_code;

}  // namespace

class HttpAnswer::Impl final : private http::basic_parser<false> {
 public:
  explicit Impl(std::size_t max_body_bytes) : max_body_bytes_(max_body_bytes) {
    eager(true);
    header_limit(kMaxHeadBytes);
    // The limit here is on what is held, which a stream's reader takes as it comes.
    body_limit(std::numeric_limits<std::uint64_t>::max());
  }

  Result<void> receive(std::string_view bytes) {
    if (error_) return fail(*error_);
    waiting_ += bytes;
    while (!waiting_.empty() && !is_done()) {
      error_code error;
      const std::size_t used = put(boost::asio::buffer(waiting_), error);
      waiting_.erase(0, used);
      const auto length = is_header_done() ? content_length() : boost::none;
      too_long_ = too_long_ || (length && *length > max_body_bytes_);
      if (too_long_ || error == http::error::header_limit)
        return fail_for_good(
            ErrorCode::kExhausted,
            fmt::format("an HTTP answer whose {} is longer than {} bytes", too_long_ ? "body" : "head",
                        too_long_ ? max_body_bytes_ : kMaxHeadBytes));
      if (error == http::error::need_more) {
        // A chunk's head may wait here, but no more than the head of it all.
        if (waiting_.size() > kMaxHeadBytes)
          return fail_for_good(ErrorCode::kProtocol, "an HTTP answer with an endless line");
        break;
      }
      if (error) return fail_for_good(ErrorCode::kProtocol, "no HTTP answer: " + error.message());
    }
    return {};
  }

  Result<void> end() {
    if (error_) return fail(*error_);
    if (is_done()) return {};
    error_code error;
    if (is_header_done()) put_eof(error);
    if (error || !is_done())
      return fail_for_good(ErrorCode::kPeerGone, "the connection ended before the answer did");
    return {};
  }

  [[nodiscard]] bool head_done() const { return is_header_done(); }
  [[nodiscard]] bool done() const { return is_done(); }
  // What comes after the end was not asked for.
  [[nodiscard]] bool keeps_connection() const { return is_done() && waiting_.empty() && keep_alive(); }

  int status = 0;
  std::string body;

 private:
  Result<void> fail_for_good(ErrorCode code, std::string text) {
    error_ = Error{code, std::move(text)};
    return fail(*error_);
  }

  std::size_t keep(string_view bytes, error_code& error) {
    if (bytes.size() > max_body_bytes_ - body.size()) {
      too_long_ = true;
      error = http::error::body_limit;
      return 0;
    }
    body.append(bytes.data(), bytes.size());
    return bytes.size();
  }

  // Of basic_parser.
  void on_request_impl(http::verb, string_view, string_view, int, error_code&) override {}
  void on_response_impl(int code, string_view, int, error_code&) override { status = code; }
  void on_field_impl(http::field, string_view, string_view, error_code&) override {}
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  std::size_t on_body_impl(string_view bytes, error_code& error) override { return keep(bytes, error); }
  void on_chunk_header_impl(std::uint64_t, string_view, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, string_view bytes, error_code& error) override {
    return keep(bytes, error);
  }
  void on_finish_impl(error_code&) override {}

  std::size_t max_body_bytes_;
  std::string waiting_;  // not parsed yet
  bool too_long_ = false;
  std::optional<Error> error_;
};

HttpAnswer::HttpAnswer(std::size_t max_body_bytes) : impl_(std::make_unique<Impl>(max_body_bytes)) {}
HttpAnswer::~HttpAnswer() = default;
HttpAnswer::HttpAnswer(HttpAnswer&&) noexcept = default;
HttpAnswer& HttpAnswer::operator=(HttpAnswer&&) noexcept = default;

Result<void> HttpAnswer::receive(std::string_view bytes) {
  return impl_->receive(bytes);
}
Result<void> HttpAnswer::end() {
  return impl_->end();
}
bool HttpAnswer::head_done() const {
  return impl_->head_done();
}
int HttpAnswer::status() const {
  return impl_->status;
}
bool HttpAnswer::done() const {
  return impl_->done();
}
bool HttpAnswer::keeps_connection() const {
  return impl_->keeps_connection();
}
std::string HttpAnswer::take_body() {
  return std::exchange(impl_->body, {});
}

std::string http_post(std::string_view host, std::string_view path, std::string_view body,
                      std::string_view fields) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}",
      path, host, body.size(), fields, body);
}

}  // namespace muster::net
