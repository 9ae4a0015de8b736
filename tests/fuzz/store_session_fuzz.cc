// SPDX-License-Identifier: Apache-2.0
// Two clients of one store send arbitrary bytes in arbitrary pieces: every connection ends in a state that
// has a meaning, a closed one gives its reason, output stays bounded, and a client that is gone waits for
// nothing.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <string_view>

#include "rendezvous/store/session.h"

namespace {

struct Client {
  Client(muster::ClientId id, muster::StoreCore& core, const muster::SessionLimits& limits)
      : session(id, core, limits) {}

  muster::Session session;
  bool closed = false;
};

// There is input left.
bool pauses(muster::Session::State state) {
  return state == muster::Session::State::kOutputFull;
}

void feed(Client& client, muster::StoreCore& core, std::string_view piece, bool settle) {
  std::string out;
  while (!client.closed) {
    const std::size_t before = piece.size();
    auto state = client.session.receive(piece, out);
    if (settle && state == muster::Session::State::kUndecided) state = client.session.settle(out);
    if (state == muster::Session::State::kClose) {
      if (client.session.close_reason().empty()) std::abort();
      client.closed = true;
    } else if (!pauses(state)) {
      if (!piece.empty()) std::abort();
      return;
    } else if (piece.size() == before && out.empty() && core.woken().empty()) {
      std::abort();  // asks to send or deliver and has nothing
    }
    out.clear();
    core.woken().clear();
  }
}

struct Said {
  std::string out;
  std::string close_reason;
  std::size_t num_bytes = 0;  // in the store afterwards
  std::size_t num_waits = 0;
  bool operator==(const Said&) const = default;
};

// One client that sends all of it, in pieces of random length where there is a generator, and is never
// silent.
Said say(std::string_view bytes, const muster::SessionLimits& limits, std::minstd_rand* random) {
  muster::StoreCore core;
  muster::Session session(1, core, limits);
  Said said;
  while (!bytes.empty() && said.close_reason.empty()) {
    const std::size_t size =
        random == nullptr ? bytes.size() : std::min<std::size_t>(bytes.size(), 1 + (*random)() % 60);
    std::string_view piece = bytes.substr(0, size);
    bytes.remove_prefix(size);
    std::string out;
    auto state = muster::Session::State::kOutputFull;
    while (pauses(state)) {
      state = session.receive(piece, out);
      said.out += out;
      out.clear();
      core.woken().clear();
    }
    if (state == muster::Session::State::kClose) said.close_reason = session.close_reason();
  }
  said.num_bytes = core.num_bytes();
  said.num_waits = core.num_waits();
  return said;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  muster::SessionLimits limits;
  limits.max_output_bytes = std::size_t{1} << 20;
  limits.pause_output_bytes = std::size_t{1} << 12;
  limits.store = {.max_keys = 6, .max_bytes = 4000, .max_waits = 5};
  muster::StoreCore core;
  {
    Client clients[] = {{1, core, limits}, {2, core, limits}};
    std::string_view rest(reinterpret_cast<const char*>(data), size);
    while (!rest.empty()) {
      // One byte says whose turn it is, whether it falls silent afterwards, and how long the piece is.
      const auto control = static_cast<std::uint8_t>(rest.front());
      rest.remove_prefix(1);
      const std::string_view piece = rest.substr(0, std::min<std::size_t>(control >> 2, rest.size()));
      feed(clients[control & 1], core, piece, (control & 2) != 0);
      rest.remove_prefix(piece.size());
    }
  }
  if (core.num_waiting() != 0 || core.num_waits() != 0) std::abort();
  if (core.num_bytes() > limits.store.max_bytes || core.num_keys() > limits.store.max_keys) std::abort();

  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const Said whole = say(all, limits, nullptr);
  std::minstd_rand random(static_cast<unsigned>(size) + 1);
  for (int i = 0; i < 2; ++i)
    if (!(say(all, limits, &random) == whole)) std::abort();
  return 0;
}
