// SPDX-License-Identifier: Apache-2.0
// Whatever an endpoint that should be an etcd answers: a value or an error, within the limits, and the same
// for the same bytes in other pieces. The first byte seeds where they are split.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/etcd/etcd_election.h"
#include "rendezvous/etcd/etcd_messages.h"
#include "rendezvous/net/http_answer.h"

namespace {

using namespace muster;

constexpr std::size_t kMaxBody = 4096;

void check(bool holds) {
  if (!holds) std::abort();
}

struct Heard {
  int status = 0;
  bool done = false;
  bool broken = false;
  std::string body;
  std::vector<etcd::WatchUpdate> updates;
  bool watch_broken = false;

  friend bool operator==(const Heard&, const Heard&) = default;
};

// Pieces of at most `most` bytes; the body is taken as a watch takes it, or left as a call leaves it.
Heard hear(std::string_view bytes, std::size_t most, bool watch, std::uint32_t seed) {
  Heard out;
  net::HttpAnswer answer(kMaxBody);
  etcd::WatchStream stream(kMaxBody);
  while (!bytes.empty() && !out.broken && !answer.done()) {
    seed = seed * 1664525 + 1013904223;
    const std::size_t size = std::min<std::size_t>(bytes.size(), 1 + (seed >> 8) % most);
    const auto taken = answer.receive(bytes.substr(0, size));
    bytes.remove_prefix(size);
    out.broken = !taken;
    if (!taken) check(!taken.error().message.empty());
    if (!watch) continue;
    const std::string piece = answer.take_body();
    check(piece.size() <= kMaxBody);
    if (out.watch_broken) continue;
    const auto updates = stream.receive(piece);
    out.watch_broken = !updates;
    if (updates) out.updates.insert(out.updates.end(), updates->begin(), updates->end());
  }
  if (!out.broken && !answer.done()) out.broken = !answer.end();
  out.status = answer.status();
  out.done = answer.done();
  out.body = answer.take_body();
  check(out.body.size() <= kMaxBody);
  return out;
}

template <class T>
void read(const Result<T>& parsed) {
  if (!parsed) check(!parsed.error().message.empty() && parsed.error().message.size() < 2000);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Heard whole = hear(bytes, bytes.size() + 1, false, data[0]);
  const Heard pieces = hear(bytes, 7, false, data[0]);
  // An answer that breaks a rule later may have given more of its body before, in pieces.
  check(whole.broken == pieces.broken && whole.done == pieces.done);
  if (!whole.broken) check(whole == pieces);
  (void)hear(bytes, 5, true, data[0]);
  for (const std::string_view body : {bytes, std::string_view(whole.body)}) {
    read(etcd::parse_grant(body));
    read(etcd::parse_keep_alive(body));
    read(etcd::parse_txn(body));
    check(!etcd::refusal(500, body).message.empty());
    etcd::WatchStream at_once(kMaxBody);
    etcd::WatchStream bytewise(kMaxBody);
    const auto updates = at_once.receive(body);
    std::vector<etcd::WatchUpdate> others;
    bool broken = false;
    for (const char c : body) {
      auto more = bytewise.receive(std::string_view(&c, 1));
      broken = !more;
      if (broken) break;
      others.insert(others.end(), more->begin(), more->end());
    }
    check(broken == !updates);
    if (updates) check(*updates == others);
    if (const auto place = etcd::decode_place(body)) check(etcd::decode_place(etcd::encode(*place)) == place);
    if (const auto state = etcd::decode_state(body))
      check(etcd::decode_state(etcd::encode_state(*state)) == state);
  }
  return 0;
}
