// SPDX-License-Identifier: Apache-2.0
// musterd at its limits: who exceeds one is closed with a line that names the option, the others notice
// nothing.
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/musterd.h"
#include "tests/support/raw_client.h"

using namespace muster;
using muster::test::Musterd;
using muster::test::RawClient;
using wire::Op;

namespace {

// The client sent something that exceeds a limit.
void require_closed(RawClient& client, Musterd& daemon, const std::string& option) {
  REQUIRE(client.ended());
  REQUIRE_THAT(
      daemon.wait_for_line("closed"),
      Catch::Contains("(" + option + ")") && Catch::Contains(":" + std::to_string(client.local_port())));
}

}  // namespace

TEST_CASE("beyond --max-connections new clients are closed, and come in when others have gone") {
  Musterd daemon = Musterd::listening({"--max-connections", "2"});
  RawClient steady = RawClient::modern(daemon.port());
  REQUIRE(steady.alive());
  {
    RawClient second = RawClient::modern(daemon.port());
    REQUIRE(second.alive());
    RawClient third(daemon.port());
    require_closed(third, daemon, "--max-connections");
    REQUIRE(second.alive());
  }
  // The daemon sees the second go before it looks for new connections, or refuses one more.
  const Instant deadline = SteadyClock::now() + test::kTimeout;
  const auto comes_in = [&] {
    RawClient next(daemon.port());
    try {
      next.send({.op = Op::kValidate, .number = wire::kMagic});
      return next.alive();
    } catch (const std::runtime_error&) {
      return false;
    }
  };
  while (!comes_in()) REQUIRE(SteadyClock::now() < deadline);
  REQUIRE(steady.alive());
}

TEST_CASE("the store's limits close who exceeds them and name their option") {
  Musterd daemon = Musterd::listening({"--max-keys", "10", "--max-bytes", "4000", "--max-waits", "5"});
  RawClient steady = RawClient::modern(daemon.port());
  steady.send({.op = Op::kSet, .key = "/steady", .value = "1"});
  REQUIRE(steady.alive());

  RawClient keys = RawClient::modern(daemon.port());
  for (int i = 0; i < 9; ++i) keys.send({.op = Op::kSet, .key = "/key" + std::to_string(i), .value = ""});
  REQUIRE(keys.alive());
  keys.send({.op = Op::kAdd, .key = "/counter", .number = 1});
  require_closed(keys, daemon, "--max-keys");
  REQUIRE(steady.alive());

  RawClient bytes = RawClient::modern(daemon.port());
  bytes.send({.op = Op::kAppend, .key = "/key1", .value = std::string(4000, 'x')});
  require_closed(bytes, daemon, "--max-bytes");
  REQUIRE(steady.alive());

  RawClient waiter = RawClient::modern(daemon.port());
  const std::vector<std::string> names = {"/0", "/1", "/2", "/3", "/4", "/5"};
  const std::vector<std::string_view> items(names.begin(), names.end());
  waiter.send({.op = Op::kWait, .items = items});
  require_closed(waiter, daemon, "--max-waits");

  steady.send({.op = Op::kGet, .key = "/steady"});
  REQUIRE(steady.receive(9).back() == '1');
  steady.send({.op = Op::kSet, .key = "/steady", .value = "2"});
  REQUIRE(steady.alive());
}

TEST_CASE("unfinished requests of all clients together are bounded, and who has most of them is closed") {
  Musterd daemon = Musterd::listening({"--max-buffered-bytes", "1000000"});
  RawClient steady = RawClient::modern(daemon.port());
  REQUIRE(steady.alive());
  const auto half_of_a_request = [](std::size_t bytes) {
    std::string out;
    wire::encode({.op = Op::kSet, .key = "/k", .value = std::string(bytes, 'x')}, out);
    out.pop_back();
    return out;
  };
  RawClient large = RawClient::modern(daemon.port());
  large.send(half_of_a_request(600'000));
  RawClient small = RawClient::modern(daemon.port());
  // The daemon reads them in turns, so the first is ahead at any time.
  small.send(half_of_a_request(450'000));
  require_closed(large, daemon, "--max-buffered-bytes");
  small.send("x");
  REQUIRE(small.alive());
  REQUIRE(steady.alive());
}
