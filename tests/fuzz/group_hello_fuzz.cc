// SPDX-License-Identifier: Apache-2.0
// What unauthenticated peers may send where a member of a tcp group listens, and what a store may say about
// the others: a hello is a member's only with the group's nonce and for a place that calls, whatever pieces
// it comes in; whereabouts that are read say the same when written.
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "tests/fuzz/random_pieces.h"
#include "worker_runtime/groups/tcp/tcp_hello.h"

namespace {

using namespace muster;
using namespace muster::groups;
using fuzz::check;
using State = HelloReader::State;

constexpr std::uint32_t kMe = 2, kMembers = 5;

std::pair<State, std::uint32_t> hear(std::string_view bytes, const Nonce& nonce, fuzz::Random* random) {
  HelloReader reader(nonce, kMe, kMembers);
  State state = State::kNeedMore;
  while (!bytes.empty() && state == State::kNeedMore) {
    const std::string_view piece = fuzz::take_piece(bytes, random, 9);
    state = reader.receive(reinterpret_cast<const std::uint8_t*>(piece.data()), piece.size());
    check((state == State::kNeedMore) == (reader.num_missing() > 0));
  }
  return {state, state == State::kMember ? reader.member() : 0};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Nonce nonce{};  // nothing that a generator of bytes would have to guess
  nonce.fill('n');
  const auto whole = hear(bytes, nonce, nullptr);
  fuzz::Random random(static_cast<unsigned>(size) + 1);
  for (int i = 0; i < 3; ++i) check(hear(bytes, nonce, &random) == whole);
  if (whole.first == State::kMember) {
    check(whole.second > kMe && whole.second < kMembers);
    const auto hello = make_hello(nonce, whole.second, kMe);
    check(size >= hello.size() && std::memcmp(hello.data(), data, hello.size()) == 0);
  }

  if (const auto where = read_whereabouts(bytes)) {
    check(where->port != 0);
    const auto again = read_whereabouts(write_whereabouts(*where));
    check(again && *again == *where);
  } else {
    check(where.error().code == ErrorCode::kProtocol && !where.error().message.empty());
  }
  return 0;
}
