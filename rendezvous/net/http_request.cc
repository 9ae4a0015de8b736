// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/http_request.h"

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

std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

}  // namespace

class HttpRequest::Impl final : private http::basic_parser<true> {
 public:
  Impl() {
    header_limit(kMaxHeadBytes);
    body_limit(std::numeric_limits<std::uint64_t>::max());
  }

  Result<bool> receive(std::string_view bytes) {
    if (error_) return fail(*error_);
    if (is_header_done()) return true;
    waiting_ += bytes;
    error_code error;
    // Not eager: the parser stops behind the head. It takes field by field, and counts none of those before.
    const std::size_t used = put(boost::asio::buffer(waiting_), error);
    waiting_.erase(0, used);
    taken_ += used;
    const bool whole = is_header_done() && (!error || error == http::error::need_more);
    if (error == http::error::header_limit || taken_ + (whole ? 0 : waiting_.size()) > kMaxHeadBytes)
      return fail_for_good(ErrorCode::kExhausted,
                           fmt::format("an HTTP request whose head is longer than {} bytes", kMaxHeadBytes));
    if (whole) {
      waiting_.clear();
      return true;
    }
    if (error && error != http::error::need_more)
      return fail_for_good(ErrorCode::kProtocol, "no HTTP request: " + error.message());
    return false;
  }

  std::string method_name;
  std::string target;

 private:
  tl::unexpected<Error> fail_for_good(ErrorCode code, std::string text) {
    error_ = Error{code, std::move(text)};
    return fail(*error_);
  }

  // Of basic_parser.
  void on_request_impl(http::verb, string_view name, string_view what, int, error_code&) override {
    method_name.assign(name.data(), name.size());
    target.assign(what.data(), what.size());
  }
  void on_response_impl(int, string_view, int, error_code&) override {}
  void on_field_impl(http::field, string_view, string_view, error_code&) override {}
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  std::size_t on_body_impl(string_view bytes, error_code&) override { return bytes.size(); }
  void on_chunk_header_impl(std::uint64_t, string_view, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, string_view bytes, error_code&) override {
    return bytes.size();
  }
  void on_finish_impl(error_code&) override {}

  std::string waiting_;    // not parsed yet
  std::size_t taken_ = 0;  // by the parser
  std::optional<Error> error_;
};

HttpRequest::HttpRequest() : impl_(std::make_unique<Impl>()) {}
HttpRequest::~HttpRequest() = default;
HttpRequest::HttpRequest(HttpRequest&&) noexcept = default;
HttpRequest& HttpRequest::operator=(HttpRequest&&) noexcept = default;

Result<bool> HttpRequest::receive(std::string_view bytes) {
  return impl_->receive(bytes);
}
const std::string& HttpRequest::method() const {
  return impl_->method_name;
}
std::string_view HttpRequest::path() const {
  return std::string_view(impl_->target).substr(0, impl_->target.find('?'));
}

std::string http_reply(int status, std::string_view type, std::string_view body, std::string_view fields,
                       bool head_only) {
  // Nosniff: a browser shall not take a name in it for markup.
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\n{}Connection: close\r\n\r\n{}",
      status, reason_of(status), type, body.size(), fields, head_only ? std::string_view{} : body);
}

}  // namespace muster::net
