// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/agent_client/control_link.h"

#include <array>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/net/awaitable.h"
#include "rendezvous/net/dial.h"
#include "rendezvous/net/send_limit.h"

namespace muster::net {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using control::Refused;
constexpr std::size_t kFirstReadBytes = 4096;
constexpr std::size_t kMostReadBytes = 65536;

// " job train"; who only looks in names none.
std::string named(std::string_view before, const std::string& job) {
  return job.empty() ? std::string() : fmt::format("{} job {}", before, job);
}

// Indexed by Refused::Reason.
constexpr std::array<ErrorCode, static_cast<std::size_t>(Refused::Reason::kLast) + 1> kCodes = {
    ErrorCode::kMismatch,  ErrorCode::kMismatch,  ErrorCode::kMismatch,
    ErrorCode::kExhausted, ErrorCode::kCancelled, ErrorCode::kPeerGone,
    ErrorCode::kProtocol,  ErrorCode::kCancelled, ErrorCode::kPeerGone};

}  // namespace

ControlLink::ControlLink(asio::io_context& loop, ControlTarget target)
    : target_(std::move(target)),
      endpoint_(endpoint_text(target_.host, target_.port)),
      socket_(loop),
      watchdog_(loop),
      decoder_(control::kMaxHandshakeFrameBytes),
      buffer_(kFirstReadBytes, '\0') {}

Error ControlLink::refused(const Refused& refused) {
  coordinator_stops_ = refused.reason == Refused::Reason::kStopping;
  busy_ = refused.reason == Refused::Reason::kBusy;
  const std::string_view verb = refused.reason == Refused::Reason::kLost ? "gave this node up for"
                                : busy_                                  ? "has no place yet for"
                                                                         : "refused";
  std::string why = refused.text;
  if (why.starts_with(auth::kOtherSecret))
    why = fmt::format("this side {}; give the coordinator's by MUSTER_SECRET or --secret-file", why);
  return {kCodes[static_cast<std::size_t>(refused.reason)],
          fmt::format("the coordinator at {} {}{}: {}", endpoint_, verb,
                      target_.job.empty() ? " this" : named("", target_.job), why)};
}

asio::awaitable<Result<control::Welcome>> ControlLink::open(std::size_t turn, Instant deadline) {
  const auto self = shared_from_this();
  if (auto dialled = co_await dial(socket_, target_.host, target_.port, turn, deadline); !dialled)
    co_return fail(std::move(dialled).error());
  if (!socket_.is_open()) co_return fail(ErrorCode::kCancelled, "closed");
  connected_ = true;
  bound_kernel_queue(socket_.native_handle());
  // Its time may come in the turn in which the handshake ends: too late to cancel it.
  const Lifetime opening;
  opening.call_at(watchdog_, deadline, [this] { close(kNoAnswer); });
  auto welcome = co_await handshake();
  watchdog_.cancel();
  co_return welcome;
}

asio::awaitable<Result<control::Welcome>> ControlLink::handshake() {
  auth::ClientHandshake handshake(target_.secret, auth::random_nonce());
  const control::Preamble mine;
  if (target_.tls) {
    tls_.emplace(*target_.tls, target_.tls_name.empty() ? target_.host : target_.tls_name);
    if (auto started = tls_->start(out_); !started) co_return fail(std::move(started).error());
  }
  std::string preamble;
  control::encode(mine, preamble);
  put(preamble);
  send(handshake.start(mine, target_.job, target_.own_host));
  const auto explain = [&](const Error& error) {
    return fail(error.code,
                fmt::format("coordinator at {}{}: {}", endpoint_, named(",", target_.job), error.message));
  };

  const auto instead = [&](const control::Message& message, std::string_view of) {
    return explain({ErrorCode::kProtocol, fmt::format("{} instead of {}", control::name_of(message), of)});
  };

  auto first = co_await receive();
  if (!first) co_return fail(std::move(first).error());
  const auto* challenge = std::get_if<control::Challenge>(&*first);
  if (challenge == nullptr) co_return instead(*first, "Challenge");
  handshake.preamble(decoder_.preamble(), tls_ ? tls_->channel_binding() : std::string());
  auto proof = handshake.challenge(*challenge);
  if (!proof) co_return explain(proof.error());
  send(*proof);

  auto second = co_await receive();
  if (!second) co_return fail(std::move(second).error());
  const auto* welcome = std::get_if<control::Welcome>(&*second);
  if (welcome == nullptr) co_return instead(*second, "Welcome");
  if (const auto proven = handshake.welcome(*welcome); !proven) co_return explain(proven.error());
  decoder_.set_max_frame_bytes(control::kMaxFrameBytes);
  co_return *welcome;
}

asio::awaitable<Result<control::Message>> ControlLink::receive() {
  const auto self = shared_from_this();
  while (true) {
    control::Message message;
    switch (decoder_.next(input_, message)) {
      case control::Decoder::Step::kMessage:
        if (const auto* no = std::get_if<Refused>(&message)) co_return fail(refused(*no));
        co_return message;
      case control::Decoder::Step::kPreamble:
        continue;
      case control::Decoder::Step::kError:
        co_return fail(ErrorCode::kProtocol, "{} does not speak muster's control protocol: {}", endpoint_,
                       decoder_.error());
      case control::Decoder::Step::kNeedMore:
        break;
    }
    if (last_read_ == buffer_.size() && last_read_ < kMostReadBytes) buffer_.resize(kMostReadBytes);
    const auto [error, size] = co_await socket_.async_read_some(asio::buffer(buffer_), kTuple);
    last_read_ = size;
    received_bytes_ += size;
    if (error) {
      finished_ = error == asio::error::eof;
      broken_ = !finished_ && close_reason_.empty();
      std::string cause =
          error == asio::error::eof ? "the coordinator closed the connection" : error.message();
      if (tls_ && !tls_->established()) cause += "; does it speak TLS (musterd --tls-cert)?";
      if (!close_reason_.empty()) cause = close_reason_;
      co_return fail(close_reason_ == kNoAnswer ? ErrorCode::kTimeout : ErrorCode::kPeerGone,
                     "control connection to {}{}: {}", endpoint_, named(" for", target_.job), cause);
    }
    input_ = std::string_view(buffer_.data(), size);
    if (!tls_) continue;
    plain_.clear();
    const auto decrypted = tls_->receive(input_, plain_, out_);
    input_ = plain_;
    flush();
    if (!decrypted)
      co_return fail(decrypted.error().code,
                     fmt::format("control connection to {}{}: {}", endpoint_, named(" for", target_.job),
                                 decrypted.error().message));
  }
}

void ControlLink::send(const control::Message& message) {
  if (finishing_) return;
  append(message);
  flush();
}

void ControlLink::send_soon(const control::Message& message) {
  if (finishing_) return;
  append(message);
  if (writing_ || std::exchange(flush_is_due_, true)) return;
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->flush_is_due_ = false;
    self->flush();
  });
}

void ControlLink::append(const control::Message& message) {
  if (!tls_) return control::encode(message, out_);
  std::string bytes;
  control::encode(message, bytes);
  put(bytes);
}

void ControlLink::put(std::string_view bytes) {
  if (!tls_)
    out_ += bytes;
  else
    (void)tls_->send(bytes, out_);  // a failure shows in the read as well
}

void ControlLink::finish_sending() {
  finishing_ = true;
  flush();
}

void ControlLink::flush() {
  if (writing_ || !connected_) return;
  if (out_.empty()) {
    boost::system::error_code ignored;
    if (finishing_) socket_.shutdown(tcp::socket::shutdown_send, ignored);
    return;
  }
  writing_ = true;
  written_.clear();
  written_.swap(out_);  // both keep their memory
  writing_bytes_ = written_.size();
  asio::async_write(socket_, asio::buffer(written_),
                    [self = shared_from_this()](const auto& error, std::size_t) {
                      self->writing_ = false;
                      self->writing_bytes_ = 0;
                      if (error) return;  // it shows in the read as well
                      self->flush();
                      if (self->drained_ && self->out_.empty() && !self->writing_) self->drained_();
                    });
}

void ControlLink::abort(std::string reason) {
  boost::system::error_code ignored;
  socket_.set_option(asio::socket_base::linger(true, 0), ignored);  // a reset
  close(std::move(reason));
}

void ControlLink::close(std::string reason) {
  if (close_reason_.empty()) close_reason_ = std::move(reason);
  connected_ = false;
  watchdog_.cancel();
  boost::system::error_code ignored;
  socket_.close(ignored);
}

}  // namespace muster::net
