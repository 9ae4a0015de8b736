// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/standalone_rendezvous.h"

#include <utility>

#include <boost/asio/post.hpp>

namespace muster::launcher {

StandaloneRendezvous::StandaloneRendezvous(boost::asio::io_context& io, const Job& job, const Log& log)
    : io_(io), job_(job), log_(log) {}

void StandaloneRendezvous::join(int attempt, Joined joined) {
  if (server_) {
    server_->begin_anew();
  } else {
    net::ServerOptions options;
    options.host = job_.master_addr;
    options.port = job_.master_port;
    auto server = net::Server::listen(io_, options, log_);
    if (!server) return joined(fail(std::move(server).error()));
    server_ = *std::move(server);
  }
  Assignment out;
  out.attempt = attempt;
  out.generation = attempt;
  out.world_size = out.role_world_size = job_.local_world_size;
  out.master_addr = job_.master_addr;
  out.master_port = server_->port();
  joined(std::move(out));
}

void StandaloneRendezvous::watch(int, OutcomeKnown known) {
  known_ = std::move(known);
}

void StandaloneRendezvous::announce(int, const FailureNotice& notice) {
  boost::asio::post(io_, [known = std::exchange(known_, {}), notice] {
    if (known) known(AttemptOutcome(notice));
  });
}

void StandaloneRendezvous::succeeded(int) {
  boost::asio::post(io_, [known = std::exchange(known_, {})] {
    if (known) known(AttemptOutcome(AllSucceeded{}));
  });
}

void StandaloneRendezvous::decline(int, const FailureNotice&) {}

void StandaloneRendezvous::leave(Millis, std::function<void()> left) {
  left();
}

}  // namespace muster::launcher
