// SPDX-License-Identifier: Apache-2.0
// A member of a tcp group that sends arbitrary bytes: what is expected of it comes whole, or the run fails
// with one line that names its rank; the same in whatever pieces it comes.
#include <cstdint>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <vector>

#include "rendezvous/base/unique_fd.h"
#include "tests/fuzz/random_pieces.h"
#include "worker_runtime/groups/tcp/tcp_mesh.h"

namespace {

using namespace muster;
using namespace muster::groups;
using fuzz::check;

struct Heard {
  std::string data;
  bool arrived = false;
  bool failed = false;
  ErrorCode code = ErrorCode::kFailed;
  std::string message;
  bool operator==(const Heard&) const = default;
};

// Messages of these sizes are expected.
Heard hear(std::string_view bytes, const std::vector<std::size_t>& sizes, fuzz::Random* random) {
  int fds[2];
  check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  std::vector<TcpMesh::Peer> peers(1);
  peers[0] = {UniqueFd(fds[0]), 1};
  const UniqueFd other(fds[1]);
  TcpMesh mesh(std::move(peers));
  std::vector<std::string> targets;
  for (const std::size_t size : sizes) targets.emplace_back(size, '\0');
  for (std::string& target : targets) mesh.receive(0, target.data(), target.size());
  Result<void> result;
  while (!bytes.empty()) {
    const std::string_view piece = fuzz::take_piece(bytes, random);
    const ssize_t n = ::send(other.get(), piece.data(), piece.size(), MSG_NOSIGNAL);
    check(n == static_cast<ssize_t>(piece.size()));
    // Takes what has come, and waits for no more.
    result = mesh.run(SteadyClock::now());
    if (result || result.error().code != ErrorCode::kTimeout) break;
  }
  if (!result || !mesh.arrived(0)) {
    ::shutdown(other.get(), SHUT_WR);
    result = mesh.run(SteadyClock::now() + Millis(10'000));
  }
  Heard out;
  for (const std::string& target : targets) out.data += target;
  out.arrived = mesh.arrived(0);
  out.failed = !result;
  if (!result) {
    out.code = result.error().code;
    out.message = result.error().message;
    check(!out.message.empty() && to_string(out.code) != "?");
    for (const char c : out.message) check(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
  }
  check(out.failed != out.arrived);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3 || size > 4096) return 0;
  const std::vector<std::size_t> sizes = {data[0], data[1], data[2]};
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 3, size - 3);
  const Heard whole = hear(bytes, sizes, nullptr);
  fuzz::Random random(static_cast<unsigned>(size) + 1);
  for (int i = 0; i < 2; ++i) check(hear(bytes, sizes, &random) == whole);
  return 0;
}
