// SPDX-License-Identifier: Apache-2.0
// Two clients of one store send arbitrary bytes in arbitrary pieces: every connection ends in a state that
// has a meaning, a closed one gives its reason, output stays bounded, and a client that is gone waits for
// nothing.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/session.h"

namespace {

struct Client {
  Client(muster::ClientId id, muster::StoreCore& core, const muster::SessionLimits& limits)
      : session(id, core, limits) {}

  muster::Session session;
  bool closed = false;
};

void feed(Client& client, std::string_view piece, bool settle) {
  std::string out;
  muster::Effects effects;
  while (!client.closed) {
    const std::size_t before = piece.size();
    auto state = client.session.receive(piece, out, effects);
    if (settle && state == muster::Session::State::kUndecided) state = client.session.settle(out, effects);
    if (state == muster::Session::State::kClose) {
      if (client.session.close_reason().empty()) std::abort();
      client.closed = true;
    } else if (state != muster::Session::State::kOutputFull) {
      if (!piece.empty()) std::abort();
      return;
    } else if (piece.size() == before && out.empty()) {
      std::abort();  // asks to send and has nothing
    }
    out.clear();
    effects.clear();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  muster::SessionLimits limits;
  limits.max_output_bytes = std::size_t{1} << 20;
  limits.pause_output_bytes = std::size_t{1} << 12;
  muster::StoreCore core;
  {
    Client clients[] = {{1, core, limits}, {2, core, limits}};
    std::string_view rest(reinterpret_cast<const char*>(data), size);
    while (!rest.empty()) {
      // One byte says whose turn it is, whether it falls silent afterwards, and how long the piece is.
      const auto control = static_cast<std::uint8_t>(rest.front());
      rest.remove_prefix(1);
      const std::string_view piece = rest.substr(0, std::min<std::size_t>(control >> 2, rest.size()));
      feed(clients[control & 1], piece, (control & 2) != 0);
      rest.remove_prefix(piece.size());
    }
  }
  if (core.num_waiting() != 0) std::abort();
  return 0;
}
