// SPDX-License-Identifier: Apache-2.0
// Sessions on one StoreCore without sockets: feed bytes to a client, read what every client got. Does what
// the server does for those who are woken.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/store/session.h"
#include "rendezvous/store/store_core.h"
#include "rendezvous/store/wire.h"

namespace muster::test {

class Sessions {
 public:
  explicit Sessions(const SessionLimits& limits = {}) : limits_(limits) {}

  ClientId open() {
    const auto id = static_cast<ClientId>(clients_.size());
    clients_.push_back(Client{std::make_unique<Session>(id, core_, limits_), {}});
    return id;
  }

  /// A client that has sent VALIDATE.
  ClientId open_modern() {
    const ClientId id = open();
    send(id, {.op = wire::Op::kValidate, .number = wire::kMagic});
    return id;
  }

  Session::State feed(ClientId id, std::string_view bytes) {
    Session::State state = Session::State::kClose;
    do {
      state = clients_[id].session->receive(bytes, clients_[id].out);
      deliver();
      if (state == Session::State::kOutputFull) clients_[id].taken += std::exchange(clients_[id].out, {});
    } while (state == Session::State::kOutputFull);
    return state;
  }

  Session::State send(ClientId id, const wire::Request& request,
                      wire::Generation generation = wire::Generation::kModern) {
    std::string bytes;
    wire::encode(request, bytes, generation);
    return feed(id, bytes);
  }

  Session::State settle(ClientId id) {
    const Session::State state = clients_[id].session->settle(clients_[id].out);
    deliver();
    return state;
  }

  /// What the client got since the last call.
  std::string take(ClientId id) {
    return std::exchange(clients_[id].taken, {}) + std::exchange(clients_[id].out, {});
  }

  void close(ClientId id) { clients_[id].session.reset(); }
  [[nodiscard]] const Session& session(ClientId id) const { return *clients_[id].session; }
  [[nodiscard]] StoreCore& core() { return core_; }

 private:
  struct Client {
    std::unique_ptr<Session> session;
    std::string out;
    std::string taken = {};  // beyond the session's output pause
  };

  void deliver() {
    for (const ClientId id : std::exchange(core_.woken(), {})) clients_[id].out.push_back(wire::kStopWaiting);
  }

  SessionLimits limits_;
  StoreCore core_;
  std::vector<Client> clients_;
};

}  // namespace muster::test
