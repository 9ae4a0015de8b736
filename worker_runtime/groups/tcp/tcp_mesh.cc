// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/tcp/tcp_mesh.h"

#include <algorithm>
#include <cstring>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <climits>
#include <fmt/format.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/syscall.h"
#include "worker_runtime/groups/base/collective.h"

namespace muster::groups {
namespace {

constexpr std::uint64_t kData = 0x4d445431;     // "1TDM"
constexpr std::uint64_t kFailure = 0x4d464c31;  // "1LFM"
constexpr std::size_t kMaxReason = 2000;
constexpr auto kLastCode = static_cast<std::uint8_t>(ErrorCode::kFailed);
constexpr Millis kGrace{200};  // for others to deliver after one peer is gone

}  // namespace

TcpMesh::TcpMesh(std::vector<Peer> peers) : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (Peer& peer : peers) static_cast<Peer&>(links_.emplace_back()) = std::move(peer);
}

void TcpMesh::send(std::size_t member, const void* data, std::size_t size) {
  if (size != 0) links_[member].sends.push_back({{kData, size}, static_cast<const std::byte*>(data), 0});
}

void TcpMesh::receive(std::size_t member, void* data, std::size_t size) {
  if (size != 0) links_[member].receives.push_back({static_cast<std::byte*>(data), size});
}

void TcpMesh::drop(Link& link, ErrorCode code, std::string why) {
  if (!link.failure) link.failure = Error{code, std::move(why)};
}

void TcpMesh::write_some(Link& link) {
  const std::lock_guard lock(sending_);
  while (!link.sends.empty() && !stopped_) {
    std::array<iovec, 16> parts{};
    std::size_t used = 0;
    for (Outgoing& out : link.sends) {
      if (used + 2 > parts.size()) break;
      if (out.done < sizeof(Frame))
        parts[used++] = {reinterpret_cast<std::byte*>(&out.frame) + out.done, sizeof(Frame) - out.done};
      const std::size_t sent = out.done < sizeof(Frame) ? 0 : out.done - sizeof(Frame);
      if (sent < out.frame.length)
        parts[used++] = {const_cast<std::byte*>(out.data) + sent, out.frame.length - sent};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = used;
    const ssize_t n =
        retry_eintr([&] { return ::sendmsg(link.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT); });
    if (n < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      // Not the end yet: what the peer said before it went may still be there to read.
      link.sends.clear();
      link.sends_lost = true;
      return;
    }
    auto left = static_cast<std::size_t>(n);
    while (!link.sends.empty()) {
      Outgoing& out = link.sends.front();
      const std::size_t rest = sizeof(Frame) + out.frame.length - out.done;
      const std::size_t step = std::min(rest, left);
      out.done += step;
      left -= step;
      if (step < rest) break;
      link.sends.pop_front();
    }
    link.mid_message = !link.sends.empty() && link.sends.front().done != 0;
  }
}

void TcpMesh::begin_payload(Link& link) {
  Frame frame{};
  std::memcpy(&frame, link.header.data(), sizeof frame);
  link.payload_done = 0;
  if (frame.kind == kFailure && frame.length >= 1 && frame.length <= kMaxReason) {
    link.reason.assign(frame.length, '\0');
  } else if (frame.kind != kData) {
    drop(link, ErrorCode::kProtocol,
         fmt::format("rank {} sent bytes that are no message of a group", link.rank));
  } else if (frame.length != link.receives.front().size) {
    drop(link, ErrorCode::kProtocol,
         fmt::format("rank {} sent {} bytes where {} were due", link.rank, frame.length,
                     link.receives.front().size));
  }
}

void TcpMesh::end_payload(Link& link) {
  if (!link.reason.empty()) {
    const auto code = static_cast<std::uint8_t>(link.reason.front());
    std::string why = link.reason.substr(1);
    std::replace_if(
        why.begin(), why.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    drop(link, code <= kLastCode ? static_cast<ErrorCode>(code) : ErrorCode::kFailed,
         "broken by another rank: " + why);
    return;
  }
  link.receives.pop_front();
  link.header_done = 0;
}

void TcpMesh::read_some(Link& link) {
  while (!link.receives.empty() && !link.failure) {
    const bool in_header = link.header_done < link.header.size();
    std::span<std::byte> target(link.receives.front().data, link.receives.front().size);
    if (in_header)
      target = link.header;
    else if (!link.reason.empty())
      target = std::as_writable_bytes(std::span(link.reason));
    std::size_t& done = in_header ? link.header_done : link.payload_done;
    if (done == target.size()) {
      end_payload(link);
      continue;
    }
    const ssize_t n = retry_eintr(
        [&] { return ::recv(link.socket.get(), target.data() + done, target.size() - done, MSG_DONTWAIT); });
    if (n <= 0) {
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      return drop(link, ErrorCode::kPeerGone, "");
    }
    done += static_cast<std::size_t>(n);
    if (in_header && done == target.size()) begin_payload(link);
  }
}

Result<void> TcpMesh::run(Instant deadline) {
  std::vector<pollfd> entries;
  std::vector<Link*> polled;
  while (true) {
    if (stopped_) return fail(ErrorCode::kCancelled, "this rank stopped the group");
    entries.assign(1, {wake_.get(), POLLIN, 0});
    polled.clear();
    bool failed = false;
    for (Link& link : links_) {
      if (!link.failure && !link.sends.empty()) write_some(link);
      if (!link.failure && !link.receives.empty()) read_some(link);
      if (link.sends_lost && link.receives.empty()) drop(link, ErrorCode::kPeerGone, "");
      failed = failed || link.failure.has_value();
      const bool to_send = !link.sends.empty();
      const bool to_receive = !link.receives.empty();
      if (link.failure || (!to_send && !to_receive)) continue;
      entries.push_back(
          {link.socket.get(), static_cast<short>((to_send ? POLLOUT : 0) | (to_receive ? POLLIN : 0)), 0});
      polled.push_back(&link);
    }
    if (polled.empty()) return outcome();
    if (failed) deadline = std::min(deadline, SteadyClock::now() + kGrace);
    const Millis left = time_left(deadline, SteadyClock::now());
    if (left.count() == 0) return outcome();
    const int timeout = static_cast<int>(std::min<std::int64_t>(left.count(), INT_MAX));
    if (::poll(entries.data(), entries.size(), timeout) < 0 && errno != EINTR)
      return fail(errno_error("poll", errno));
    for (std::size_t i = 0; i < polled.size(); ++i) {
      // A peer that is gone while we only send to it: reading tells whether it left a reason.
      if ((entries[i + 1].revents & (POLLERR | POLLHUP)) != 0 && polled[i]->receives.empty()) {
        polled[i]->sends.clear();
        drop(*polled[i], ErrorCode::kPeerGone, "");
      }
    }
  }
}

Result<void> TcpMesh::outcome() const {
  std::vector<int> gone;
  std::vector<int> silent;
  for (const Link& link : links_) {
    if (link.failure && link.failure->code != ErrorCode::kPeerGone) return fail(*link.failure);
    if (link.failure && !link.failure->message.empty()) return fail(*link.failure);
    if (link.failure) gone.push_back(link.rank);
    if (!link.failure && (!link.sends.empty() || !link.receives.empty())) silent.push_back(link.rank);
  }
  if (!gone.empty())
    return fail(ErrorCode::kPeerGone,
                "{} closed the connection: died, or ended without this operation; see its own output",
                rank_list(gone));
  if (!silent.empty())
    return fail(ErrorCode::kTimeout,
                "timed out waiting for {}; is it stopped, still busy with something else, or cut off?",
                rank_list(silent));
  return {};
}

void TcpMesh::fail_peers(const Error& error) {
  std::string payload(1, static_cast<char>(error.code));
  payload += error.message.substr(0, kMaxReason - 1);
  const Frame frame{kFailure, payload.size()};
  std::string bytes(reinterpret_cast<const char*>(&frame), sizeof frame);
  bytes += payload;
  const std::lock_guard lock(sending_);
  // The queues belong to the thread in run(), which drops them.
  for (Link& link : links_)
    if (link.socket && !link.mid_message)
      (void)::send(link.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  stopped_ = true;
  (void)::eventfd_write(wake_.get(), 1);
}

}  // namespace muster::groups
