// SPDX-License-Identifier: Apache-2.0
// Writes the seeds of the tcp groups' targets: what a member really says. Usage: group_seeds <folder for
// fuzz_group_hello> <folder for fuzz_group_mesh>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <vector>

#include "rendezvous/base/unique_fd.h"
#include "worker_runtime/groups/tcp/tcp_hello.h"
#include "worker_runtime/groups/tcp/tcp_mesh.h"

namespace {

using namespace muster;
using namespace muster::groups;

bool write(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return file.good();
}

// What a mesh puts on its connection.
template <class Talk>
std::string said(Talk talk) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) return "";
  std::vector<TcpMesh::Peer> peers(1);
  peers[0] = {UniqueFd(fds[0]), 0};
  const UniqueFd other(fds[1]);
  TcpMesh mesh(std::move(peers));
  talk(mesh);
  std::string out(4096, '\0');
  const ssize_t n = ::recv(other.get(), out.data(), out.size(), MSG_DONTWAIT);
  out.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: group_seeds <hello corpus> <mesh corpus>\n");
    return 2;
  }
  Nonce nonce{};
  nonce.fill('n');  // as group_hello_fuzz.cc knows it
  const auto hello = make_hello(nonce, 4, 2);
  bool good =
      write(std::string(argv[1]) + "/hello", {reinterpret_cast<const char*>(hello.data()), hello.size()});
  good = good && write(std::string(argv[1]) + "/whereabouts",
                       write_whereabouts({nonce, 4711, {"10.0.0.1", "fd00::1", "node-3"}}));

  const std::string data = "0123456789";
  const std::string messages = said([&](TcpMesh& mesh) {
    for (const std::size_t size : {4, 0, 10}) mesh.send(0, data.data(), size);
    (void)mesh.run(SteadyClock::now());
  });
  const std::string broken = said([&](TcpMesh& mesh) {
    mesh.send(0, data.data(), 4);
    (void)mesh.run(SteadyClock::now());
    mesh.fail_peers({ErrorCode::kTimeout, "rank 3 is silent"});
  });
  const std::string sizes("\x04\x00\x0a", 3);
  good = good && !messages.empty() && broken.size() > 20;
  good = good && write(std::string(argv[2]) + "/messages", sizes + messages);
  good = good && write(std::string(argv[2]) + "/broken", sizes + broken);
  if (!good) std::fprintf(stderr, "group_seeds: cannot write to %s or %s\n", argv[1], argv[2]);
  return good ? 0 : 1;
}
