// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/acceptor.h"

#include <cerrno>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

namespace muster::net {
namespace {

UniqueFd open_spare() {
  return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

// Of the listener: what it accepts inherits them, so they cost nothing per connection.
void set_socket_options(int fd) {
  const auto set = [fd](int level, int name, int value) {
    ::setsockopt(fd, level, name, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // A peer that vanished without a word costs a descriptor for two minutes.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 15);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

}  // namespace

Acceptor::Acceptor(Listener listener, int per_turn)
    : listener_(std::move(listener)), per_turn_(per_turn), spare_fd_(open_spare()) {
  for (const UniqueFd& fd : listener_.fds) set_socket_options(fd.get());
}

void Acceptor::accept_some(const Admit& admit, const Refused& refused) {
  for (const UniqueFd& fd : listener_.fds) accept_from(fd.get(), admit, refused);
}

void Acceptor::accept_from(int listener, const Admit& admit, const Refused& refused) {
  for (int i = 0; i < per_turn_; ++i) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      admit(std::move(fd));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN) return;
    if (errno != EMFILE && errno != ENFILE)
      return refused(errno_error("accept on " + listener_.address, errno).message);
    if (!turn_away(listener, errno, refused)) return;
  }
}

// Without a free descriptor a waiting connection would keep the listener readable and the loop spinning: the
// spare one is used to take it and close it.
bool Acceptor::turn_away(int listener, int error_number, const Refused& refused) {
  spare_fd_.reset();
  bool turned_away = false;
  if (const UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)); fd) {
    turned_away = true;
    refused(fmt::format("closed {}: {}; raise the descriptor limit (ulimit -n)", peer_name(fd.get()),
                        errno_text(error_number)));
  }
  spare_fd_ = open_spare();
  return turned_away;
}

}  // namespace muster::net
