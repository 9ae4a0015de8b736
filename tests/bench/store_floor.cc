// SPDX-License-Identifier: Apache-2.0
// store_floor: what a GET costs where nothing is stored: an epoll loop that answers every request with one
// receive and one send, and looks at nothing but its length. What remains to a store on TCP is the rest.
// usage: store_floor GET_BYTES VALUE_BYTES; prints its port, serves until it is killed.
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <netinet/in.h>
#include <string>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <unordered_map>

#include "rendezvous/base/syscall.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/store/wire.h"
#include "tests/bench/load_socket.h"

int main(int argc, char** argv) {
  using namespace muster;
  using namespace muster::bench;
  if (argc != 3) give_up("usage: store_floor GET_BYTES VALUE_BYTES");
  const auto get_bytes = static_cast<ssize_t>(std::atol(argv[1]));
  std::string value;
  wire::put_bytes(value, std::string(static_cast<std::size_t>(std::atol(argv[2])), 'v'));
  const std::string number(8, '\0');  // the answer to everything else: the generator sets its keys first
  auto listener = net::open_listener("127.0.0.1", 0);
  if (!listener) give_up(listener.error().message);
  std::printf("%d\n", static_cast<int>(listener->port));
  std::fflush(stdout);

  Poller poller;
  const int listening = listener->fds.front().get();
  poller.add(listening, EPOLLIN, static_cast<std::uint64_t>(listening));
  std::unordered_map<int, UniqueFd> clients;
  std::string scratch(65536, '\0');
  while (true) {
    const std::size_t n = poller.wait(-1, "a request");
    for (std::size_t i = 0; i < n; ++i) {
      const int fd = static_cast<int>(poller[i].data.u64);
      if (fd == listening) {
        UniqueFd client(::accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!client) continue;
        poller.add(client.get(), EPOLLIN, static_cast<std::uint64_t>(client.get()));
        const int key = client.get();
        clients.insert_or_assign(key, std::move(client));
        continue;
      }
      const ssize_t size =
          retry_eintr([&] { return ::recv(fd, scratch.data(), scratch.size(), MSG_DONTWAIT); });
      if (size <= 0) {
        clients.erase(fd);
        continue;
      }
      const std::string& answer = size == get_bytes ? value : number;
      if (::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) clients.erase(fd);
    }
  }
}
