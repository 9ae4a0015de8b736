// SPDX-License-Identifier: Apache-2.0
// Two meshes at the ends of a socket pair: what run() reports when an end goes, and who can end it.
#include "worker_runtime/groups/tcp/tcp_mesh.h"

#include <sys/socket.h>
#include <thread>

#include "tests/support/catch.h"

using namespace muster;
using namespace muster::groups;
using namespace std::chrono_literals;

namespace {

struct Ends {
  UniqueFd near;
  UniqueFd far;
};

Ends make_ends() {
  int fds[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::vector<TcpMesh::Peer> one_peer(UniqueFd socket, int rank) {
  std::vector<TcpMesh::Peer> peers(1);
  peers[0] = {std::move(socket), rank};
  return peers;
}

Instant soon() {
  return SteadyClock::now() + 20s;
}

}  // namespace

TEST_CASE("a message to a peer that is gone was not sent, also when nothing is expected from it") {
  Ends ends = make_ends();
  TcpMesh mesh(one_peer(std::move(ends.near), 1));
  ends.far.reset();
  const int number = 7;
  mesh.send(0, &number, sizeof number);
  const auto outcome = mesh.run(soon());
  REQUIRE_FALSE(outcome);
  REQUIRE(outcome.error().code == ErrorCode::kPeerGone);
  REQUIRE_THAT(outcome.error().message, Catch::Contains("rank 1"));
}

TEST_CASE("a peer that said its part and left has still not taken ours") {
  Ends ends = make_ends();
  TcpMesh mesh(one_peer(std::move(ends.near), 1));
  const int said = 42;
  {
    TcpMesh peer(one_peer(std::move(ends.far), 0));
    peer.send(0, &said, sizeof said);
    REQUIRE_OK(peer.run(soon()));
  }
  int heard = 0;
  mesh.send(0, &said, sizeof said);
  mesh.receive(0, &heard, sizeof heard);
  const auto outcome = mesh.run(soon());
  REQUIRE_FALSE(outcome);
  REQUIRE(outcome.error().code == ErrorCode::kPeerGone);
  REQUIRE(mesh.arrived(0));
  REQUIRE(heard == 42);
}

TEST_CASE("fail_peers ends a run that waits on another thread, and the peer learns why") {
  Ends ends = make_ends();
  TcpMesh mesh(one_peer(std::move(ends.near), 1));
  TcpMesh peer(one_peer(std::move(ends.far), 0));
  int sent = 1, heard = 0, never = 0;
  Result<void> outcome;
  std::thread waiting([&] {
    mesh.send(0, &sent, sizeof sent);
    mesh.receive(0, &never, sizeof never);
    outcome = mesh.run(soon());
  });
  peer.receive(0, &heard, sizeof heard);
  const auto met = peer.run(soon());  // the other thread is in run() by now
  mesh.fail_peers({ErrorCode::kFailed, "enough"});
  waiting.join();
  REQUIRE_OK(met);
  REQUIRE_FALSE(outcome);
  REQUIRE(outcome.error().code == ErrorCode::kCancelled);

  peer.receive(0, &heard, sizeof heard);
  const auto told = peer.run(soon());
  REQUIRE_FALSE(told);
  REQUIRE(told.error().code == ErrorCode::kFailed);
  REQUIRE_THAT(told.error().message, Catch::Contains("enough"));
}
