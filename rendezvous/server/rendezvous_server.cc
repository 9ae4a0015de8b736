// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/rendezvous_server.h"

#include <utility>

namespace muster::net {

bool protects_itself(const ControlServerOptions& options) {
  return options.secret || options.job_secrets || options.tls;
}

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::listen(boost::asio::io_context& loop,
                                                                   const RendezvousServerOptions& options,
                                                                   const Log& log) {
  std::unique_ptr<RendezvousServer> out(new RendezvousServer);
  ControlServerOptions control = options.control;
  if (options.state) control.state = options.state;
  control.this_host_only = options.this_host_only && !protects_itself(control);
  control.stores.limits = options.store.limits;
  control.stores.max_buffered_bytes = options.store.max_buffered_bytes;
  if (options.store_per_generation) control.on_generation = [&server = out->store_] { server->begin_anew(); };
  out->control_ = ControlServer::make(loop, control, log);
  ServerOptions store = options.store;
  store.state = options.state;
  store.hand_over = [coordinator = out->control_.get()](UniqueFd fd, std::string_view first_bytes,
                                                        std::string peer) {
    coordinator->accept(std::move(fd), first_bytes, std::move(peer));
  };
  store.other_first_bytes.assign(1, control::kFirstByte);
  if (options.control.tls) store.other_first_bytes += tls::kFirstByte;
  if (protects_itself(options.control))
    store.clients = ServerOptions::Clients::kUsersOfThisHost;
  else if (options.this_host_only)
    store.clients = ServerOptions::Clients::kThisHost;
  MUSTER_TRY(out->store_, Server::listen(loop, store, log));
  return out;
}

void RendezvousServer::stop() {
  store_->stop();
  control_->stop();
}

}  // namespace muster::net
