// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/connection.h"

#include <cerrno>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

namespace muster::net {
namespace {

// An output buffer that grew beyond this for one large answer is given back.
constexpr std::size_t kKeptOutputBytes = 65536;

}  // namespace

Connection::Connection(UniqueFd fd, ClientId id, const Shared& shared)
    : fd_(std::move(fd)), shared_(shared), session_(id, shared.core, shared.limits, shared.torchrun) {}

Connection::Status Connection::failed(std::string reason) {
  reason_ = std::move(reason);
  return Status::kFailed;
}

Connection::Status Connection::flush(Instant now) {
  if (*shared_.hold) [[unlikely]]
    return Status::kOpen;
  while (sent_ < out_.size()) {
    const ssize_t n = retry_eintr([&] {
      return ::send(fd_.get(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    });
    if (n > 0) {
      sent_ += static_cast<std::size_t>(n);
      last_progress_ = now;
      continue;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK) return failed(errno_error("send", errno).message);
    if (unsent_bytes() <= shared_.limits.max_output_bytes + kKeptOutputBytes) return Status::kOpen;
    rejection_ = Rejection::kSlowReader;
    return failed(fmt::format("it has not read {} bytes of answers", unsent_bytes()));
  }
  if (out_.capacity() > kKeptOutputBytes) out_ = std::string();
  out_.clear();
  sent_ = 0;
  return Status::kOpen;
}

Connection::Status Connection::process(std::string_view input, Effects& effects, Instant now) {
  while (true) {
    const Session::State state = session_.receive(input, out_, effects);
    const Status status = flush(now);
    if (state == Session::State::kClose) return failed(session_.close_reason());
    if (status != Status::kOpen) return status;
    undecided_ = state == Session::State::kUndecided;
    if (state != Session::State::kOutputFull) return Status::kOpen;
    if (blocked()) {
      unread_.assign(input);
      return Status::kOpen;
    }
  }
}

Connection::Status Connection::on_readable(std::string& scratch, Effects& effects, Instant now) {
  // It became blocked by what another client did, after the event was fetched: the bytes come again later.
  if (blocked()) return Status::kOpen;
  const ssize_t n =
      retry_eintr([&] { return ::recv(fd_.get(), scratch.data(), scratch.size(), MSG_DONTWAIT); });
  if (n > 0 && is_other_protocol(scratch[0])) {
    unread_.assign(scratch, 0, static_cast<std::size_t>(n));
    return Status::kOther;
  }
  if (n > 0 && !served()) {
    rejection_ = Rejection::kAuthentication;
    return failed(not_served_);
  }
  if (n > 0) return process({scratch.data(), static_cast<std::size_t>(n)}, effects, now);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status::kOpen;
  const std::string cause = n == 0 ? "it closed the connection" : errno_error("recv", errno).message;
  if (!session_.between_requests())
    return failed(fmt::format("{} in the middle of {}", cause, session_.current_op()));
  reason_ = cause;
  return Status::kEnded;
}

bool Connection::is_other_protocol(char first) const {
  return session_.generation() == wire::Generation::kUndetected && session_.between_requests() &&
         shared_.other_first_bytes.find(first) != std::string_view::npos;
}

bool Connection::asks_nothing() const {
  if (blocked()) return false;
  char first = 0;
  const ssize_t n = retry_eintr([&] { return ::recv(fd_.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT); });
  return n == 0 || (n < 0 && errno != EAGAIN) || !served() || is_other_protocol(first);
}

UniqueFd Connection::release(std::string& first_bytes) {
  first_bytes = std::move(unread_);
  return std::move(fd_);
}

Connection::Status Connection::on_writable(Effects& effects, Instant now) {
  if (const Status status = flush(now); status != Status::kOpen || blocked()) return status;
  const std::string input = std::exchange(unread_, {});
  return process(input, effects, now);
}

Connection::Status Connection::send_held(Instant now) {
  last_progress_ = now;  // what was held is no fault of the peer's
  return flush(now);
}

bool Connection::time_is_up(Millis slow_reader_timeout, Millis first_byte_timeout) {
  if (blocked())
    give_up(Rejection::kSlowReader, fmt::format("it has not read its answers for {} ms, {} bytes are waiting",
                                                slow_reader_timeout.count(), unsent_bytes()));
  else if (!served())
    give_up(Rejection::kAuthentication,
            fmt::format("it said nothing for {} ms, and {}", first_byte_timeout.count(), not_served_));
  else
    return false;
  return true;
}

Connection::Status Connection::settle(Effects& effects, Instant now) {
  undecided_ = false;
  const Session::State state = session_.settle(out_, effects);
  const Status status = flush(now);
  return state == Session::State::kClose ? failed(session_.close_reason()) : status;
}

}  // namespace muster::net
