// SPDX-License-Identifier: Apache-2.0
// EtcdHost: the coordinator of a job over etcd (rendezvous/etcd), with this job's addresses and options.
// Owned by CoordinatedRendezvous; one loop. Failure: etcd::Coordinator's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launcher/job/job.h"
#include "launcher/join/coordinator_host.h"
#include "launcher/network/listening.h"
#include "rendezvous/etcd/coordinator.h"

namespace muster::launcher {

class EtcdHost final : public CoordinatorHost {
 public:
  EtcdHost(boost::asio::io_context& io, const Job& job, const Log& log) : io_(io), job_(job), log_(log) {}

  void start(const std::vector<InterfaceAddress>& own, const std::vector<std::string>& offered,
             Callbacks callbacks) override {
    const ElasticJob& elastic = job_.elastic;
    const std::vector<std::string> bound = listening_addresses(elastic, offered, own);
    etcd::CoordinatorOptions options;
    options.etcd = *elastic.etcd;
    options.job = job_.run_id;
    options.host = job_.host;
    options.addresses = offered;
    options.own_address = connect_address(bound);
    options.listen = [bound] { return listen_at(bound, 0); };
    options.sort_addresses = [own](const auto& addresses) { return addresses_to_try(addresses, own); };
    options.secret = elastic.secret;
    options.heartbeat_interval = elastic.heartbeat_interval;
    options.connect_timeout = elastic.connect_timeout;
    options.reconnect_timeout = elastic.reconnect_for;
    coordinator_ = std::make_unique<etcd::Coordinator>(
        io_, std::move(options),
        etcd::Coordinator::Events{std::move(callbacks.located), std::move(callbacks.moved),
                                  std::move(callbacks.lost)},
        log_);
  }
  [[nodiscard]] bool is_hosting() const override { return coordinator_->is_hosting(); }
  [[nodiscard]] bool survives_exit() const override { return true; }
  [[nodiscard]] std::string host() const override { return coordinator_->host(); }
  [[nodiscard]] std::uint16_t port() const override { return coordinator_->port(); }
  [[nodiscard]] std::string title() const override {
    return coordinator_ ? coordinator_->title() : etcd::member_list(*job_.elastic.etcd);
  }
  [[nodiscard]] membership::NodeId node() const override { return coordinator_->node(); }
  void set_joined() override { coordinator_->set_joined(); }
  void drain(Millis timeout, std::function<void()> done) override {
    if (!coordinator_) return done();
    coordinator_->drain(timeout, std::move(done));
  }

 private:
  boost::asio::io_context& io_;
  const Job& job_;
  const Log& log_;
  std::unique_ptr<etcd::Coordinator> coordinator_;
};

}  // namespace muster::launcher
