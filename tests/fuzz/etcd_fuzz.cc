// SPDX-License-Identifier: Apache-2.0
// Whatever body an endpoint that should be an etcd answers with: a value or an error, within the limits, and
// the same for the same bytes in other pieces. (HTTP itself is Boost.Beast's.)
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/etcd/election.h"
#include "rendezvous/etcd/messages.h"

namespace {

using namespace muster;

constexpr std::size_t kMaxBody = 4096;

void check(bool holds) {
  if (!holds) std::abort();
}

template <class T>
void read(const Result<T>& parsed) {
  if (!parsed) check(!parsed.error().message.empty() && parsed.error().message.size() < 2000);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  read(etcd::grant(1).parse(body));
  read(etcd::keep_alive(1).parse(body));
  read(etcd::commit({}).parse(body));
  check(!etcd::error_of_response(500, body).message.empty());
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
  if (const auto endpoint = etcd::decode_endpoint(body))
    check(etcd::decode_endpoint(etcd::encode(*endpoint)) == endpoint);
  if (const auto state = etcd::decode_state(body))
    check(etcd::decode_state(etcd::encode_state(*state)) == state);
  return 0;
}
