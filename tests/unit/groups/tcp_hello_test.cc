// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/tcp/tcp_hello.h"

#include <algorithm>

#include "tests/support/catch.h"

using namespace muster;
using namespace muster::groups;
using State = HelloReader::State;

namespace {

Nonce nonce() {
  Nonce out{};
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint8_t>(7 * i + 1);
  return out;
}

// What member 2 of 5 says to it.
State heard(const std::array<std::uint8_t, kHelloBytes>& hello) {
  const Nonce known = nonce();
  HelloReader reader(known, 2, 5);
  return reader.receive(hello.data(), hello.size());
}

}  // namespace

TEST_CASE("a hello that comes byte by byte names its member") {
  const Nonce known = nonce();
  HelloReader reader(known, 2, 5);
  const auto hello = make_hello(known, 4, 2);
  for (std::size_t i = 0; i + 1 < hello.size(); ++i)
    REQUIRE(reader.receive(&hello[i], 1) == State::kNeedMore);
  REQUIRE(reader.num_missing() == 1);
  REQUIRE(reader.receive(&hello.back(), 1) == State::kMember);
  REQUIRE(reader.member() == 4);
}

TEST_CASE("another nonce, another place and a place that does not call are refused") {
  REQUIRE(heard(make_hello(nonce(), 3, 2)) == State::kMember);
  for (std::size_t i = 0; i < kReplyBytes; ++i) {
    Nonce other = nonce();
    other[i] ^= 1;
    REQUIRE(heard(make_hello(other, 3, 2)) == State::kUnauthenticated);
  }
  REQUIRE(heard(make_hello(nonce(), 3, 1)) == State::kUnauthenticated);
  REQUIRE(heard(make_hello(nonce(), 2, 2)) == State::kUnauthenticated);
  REQUIRE(heard(make_hello(nonce(), 1, 2)) == State::kUnauthenticated);
  REQUIRE(heard(make_hello(nonce(), 5, 2)) == State::kUnauthenticated);
  REQUIRE(heard(make_hello(nonce(), 0xffffffff, 2)) == State::kUnauthenticated);
}

TEST_CASE("a reply is the half of the nonce that no hello shows") {
  const Nonce known = nonce();
  REQUIRE(is_reply(make_reply(known), known));
  auto hello = make_hello(known, 3, 2);
  std::array<std::uint8_t, kReplyBytes> echoed{};
  std::copy_n(hello.begin(), echoed.size(), echoed.begin());
  REQUIRE_FALSE(is_reply(echoed, known));
}

TEST_CASE("whereabouts survive the store, and what is none is refused in words") {
  const Whereabouts where{nonce(), 4711, {"10.0.0.1", "fd00::1", "node-3"}};
  const auto read = read_whereabouts(write_whereabouts(where));
  REQUIRE_OK(read);
  REQUIRE(*read == where);
  const std::string bytes = write_whereabouts(where).substr(0, 32);
  REQUIRE_OK(read_whereabouts(bytes + "1"));
  REQUIRE(read_whereabouts(bytes + "1  ")->addresses.empty());
  for (const std::string& text : {std::string(), bytes.substr(1), bytes, bytes + " ", bytes + "0 10.0.0.1",
                                  bytes + "65536 10.0.0.1", bytes + "4711x 10.0.0.1"}) {
    const auto defect = read_whereabouts(text);
    REQUIRE_FALSE(defect);
    REQUIRE(defect.error().code == ErrorCode::kProtocol);
  }
}
