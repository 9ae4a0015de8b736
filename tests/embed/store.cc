// SPDX-License-Identifier: Apache-2.0
// A user's program that links the store alone: serves one on a free port and talks to it.
#include <iostream>

#include <muster/store_server.h>
#include <muster/tcp_store.h>

namespace {

muster::Result<std::string> round_trip() {
  MUSTER_TRY(const auto server, muster::StoreServer::start({.host = "127.0.0.1", .port = 0}));
  MUSTER_TRY(const auto store, muster::TcpStore::connect({.host = "127.0.0.1", .port = server->port()}));
  MUSTER_OK(store->set("greeting", "hello"));
  return store->get("greeting");
}

}  // namespace

int main() {
  const auto value = round_trip();
  if (!value) {
    std::cerr << "embed_store: " << value.error().message << '\n';
    return 1;
  }
  std::cout << "greeting: " << *value << '\n';
}
