// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/control_peer.h"

#include <cerrno>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/text.h"
#include "rendezvous/protocol/clock_offset.h"
#include "rendezvous/store/wire.h"

namespace muster::net {

using control::Refused;

Rejection kind_of(control::Refused::Reason reason) {
  switch (reason) {
    case control::Refused::Reason::kAuthentication:
      return Rejection::kAuthentication;
    case control::Refused::Reason::kLimit:
      return Rejection::kLimit;
    default:
      return Rejection::kProtocol;
  }
}

ControlPeer::ControlPeer(int fd, std::string name, const control::Limits& limits, const control::Nonce& nonce,
                         const std::optional<tls::Context>& tls)
    : fd_(fd),
      name_(std::move(name)),
      decoder_({control::kMaxHandshakeFrameBytes, limits.max_list}),
      handshake_(nonce) {
  if (tls) tls_ = std::make_shared<tls::Stream>(*tls);
}

Result<std::string_view> ControlPeer::decrypt(std::string_view bytes, std::string& plain) {
  if (!tls_) return bytes;
  plain.clear();
  MUSTER_OK(tls_->receive(bytes, plain, out_));
  return std::string_view(plain);
}

void ControlPeer::send(std::string_view bytes) {
  if (lent_) return;  // nobody is known yet who could be told
  if (!tls_)
    out_ += bytes;
  else
    (void)tls_->send(bytes, out_);  // where TLS has failed nothing is sent, and the next decrypt() says why
}

std::string ControlPeer::address() const {
  const std::string_view host = std::string_view(name_).substr(0, name_.rfind(':'));
  return std::string(host.starts_with('[') ? host.substr(1, host.size() - 2) : host);
}

std::string ControlPeer::title() const {
  return host_.empty() ? address() : fmt::format("{} ({})", host_, address());
}

std::string ControlPeer::flush() {
  while (sent_ < out_.size()) {
    const ssize_t n = retry_eintr(
        [&] { return ::send(fd_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT); });
    if (n > 0) {
      sent_ += static_cast<std::size_t>(n);
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    send_error_ = errno;
    return errno_error("send", send_error_).message;
  }
  constexpr std::size_t kKeptBytes = 32768;
  if (out_.capacity() > kKeptBytes) out_ = std::string();
  out_.clear();
  sent_ = 0;
  return {};
}

// It names its job in the clear, and proves that it knows the secret of that job: the proof covers the name.
ControlPeer::Step ControlPeer::take_start(const control::Start& start, const HandshakeOptions& options) {
  Step out;
  host_ = printable(start.host, 64);
  if (std::string text = control::defect_of_job(start.job); !text.empty() && !start.job.empty()) {
    out.refused = Refused{Refused::Reason::kSettings, std::move(text)};
    return out;
  }
  std::optional<auth::Secret> secret = options.secret;
  if (options.job_secrets != nullptr) {
    const auth::Secret* own = options.job_secrets->find(start.job);
    own_secret_ = own != nullptr;
    if (own_secret_) secret = *own;
    if (!secret && !options.proves_otherwise) {
      out.refused = Refused{Refused::Reason::kAuthentication,
                            start.job.empty()
                                ? "each job has a secret of its own here: name the job"
                                : fmt::format("job {} has no secret here, as every job needs one (musterd "
                                              "--job-secret, --secrets-dir, or --secret-file for all others)",
                                              start.job)};
      return out;
    }
  }
  job_ = start.job;
  send(control::Message(handshake_.start(start, std::move(secret))));
  stage = Stage::kProof;
  return out;
}

ControlPeer::Step ControlPeer::next(std::string_view& input, const HandshakeOptions& options) {
  Step out;
  control::Message message;
  switch (decoder_.next(input, message)) {
    case control::Decoder::Step::kNeedMore:
      out.need_more = true;
      return out;
    case control::Decoder::Step::kError:
      out.error = decoder_.error();
      return out;
    case control::Decoder::Step::kPreamble: {
      const control::Preamble& theirs = decoder_.preamble();
      const std::uint8_t version = control::choose_version(theirs);
      const control::Preamble mine{version, version};
      send(mine);
      handshake_.preamble(theirs, mine, tls_ ? tls_->channel_binding() : std::string());
      if (version == 0)
        out.refused = Refused{Refused::Reason::kVersion,
                              fmt::format("the agent speaks versions {} to {} of the control protocol, the "
                                          "coordinator {}; use the same release on all nodes",
                                          theirs.lowest, theirs.highest, control::kProtocolVersion)};
      stage = Stage::kStart;
      return out;
    }
    case control::Decoder::Step::kMessage:
      break;
  }

  if (const auto* clock = std::get_if<control::Clock>(&message); clock != nullptr && stage == Stage::kOpen) {
    const std::int64_t received = wall_nanoseconds();
    send(control::Message(control::Clock{clock->asked, received, wall_nanoseconds()}));
    return out;
  }
  if (stage == Stage::kOpen && job_.empty() && !std::holds_alternative<control::Query>(message)) {
    out.refused = Refused{Refused::Reason::kSettings, control::defect_of_job(job_)};
    return out;
  }
  if (stage == Stage::kOpen) {
    out.message = std::move(message);
    return out;
  }
  if (const auto* start = std::get_if<control::Start>(&message); start != nullptr && stage == Stage::kStart)
    return take_start(*start, options);
  if (const auto* proof = std::get_if<control::Proof>(&message); proof != nullptr && stage == Stage::kProof) {
    const auto mac = handshake_.proof(*proof);
    if (!mac) {
      out.refused = Refused{Refused::Reason::kAuthentication, mac.error().message};
      if (own_secret_) out.refused->text += fmt::format(" (job {} has one of its own)", job_);
      return out;
    }
    send(control::Message(
        control::Welcome{*mac, options.heartbeat_ms, options.software, options.reconnect_ms}));
    decoder_.set_max_frame_bytes(options.limits.max_frame_bytes);
    stage = Stage::kOpen;
    out.opened = true;
    return out;
  }
  out.error = fmt::format("{} where it is not expected", control::name_of(message));
  return out;
}

}  // namespace muster::net
