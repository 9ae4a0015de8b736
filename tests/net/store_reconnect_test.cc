// SPDX-License-Identifier: Apache-2.0
// The blocking client whose server, musterd --state-dir, dies and comes back.
#include <future>

#include <muster/tcp_store.h>

#include "tests/support/catch.h"
#include "tests/support/fake_server.h"
#include "tests/support/kept_musterd.h"

using namespace muster;
using namespace std::chrono_literals;
using muster::test::FakeServer;
using muster::test::KeptMusterd;
using Peer = FakeServer::Peer;

namespace {

std::unique_ptr<TcpStore> connect(std::uint16_t port, Store::Timeout reconnect_for = 20s) {
  TcpStoreOptions options;
  options.host = "127.0.0.1";
  options.port = port;
  options.timeout = 20s;
  options.reconnect_for = reconnect_for;
  auto store = TcpStore::connect(options);
  REQUIRE_OK(store);
  return *std::move(store);
}

}  // namespace

TEST_CASE("every operation works after the server was killed and came back, on what it held before") {
  KeptMusterd keeper;
  auto store = connect(keeper.port());
  REQUIRE_OK(store->set("k", "v"));
  REQUIRE(store->add("n", 2) == 2);
  REQUIRE_OK(store->append("k", "w"));
  REQUIRE_OK(store->queue_push("q", "one"));
  const std::string both[] = {"k", "n"};
  for (int operation = 0; operation < 14; ++operation) {
    CAPTURE(operation);
    keeper.kill();
    keeper.start();
    switch (operation) {
      case 0:
        REQUIRE(store->add("n", 1) == 3);  // the loss is seen before it is sent
        break;
      case 1:
        REQUIRE(store->get("k") == "vw");
        break;
      case 2:
        REQUIRE_OK(store->set("k", "x"));
        break;
      case 3:
        REQUIRE(store->multi_get(both) == std::vector<std::string>{"x", "3"});
        break;
      case 4:
        REQUIRE(store->check(both) == true);
        break;
      case 5:
        REQUIRE_OK(store->wait(both, {}));
        break;
      case 6:
        REQUIRE(store->compare_set("k", "x", "y") == "y");
        break;
      case 7:
        REQUIRE_OK(
            store->multi_set(std::vector<std::pair<std::string, std::string>>{{"a", "1"}, {"b", "2"}}));
        break;
      case 8:
        REQUIRE(store->num_keys() == 4);
        break;
      case 9:
        REQUIRE(store->delete_key("a") == true);
        break;
      case 10:
        REQUIRE(store->queue_len("q") == 1);
        break;
      case 11:
        REQUIRE(store->queue_pop("q") == "one");
        break;
      case 12:
        REQUIRE_OK(store->append("b", "3"));
        break;
      default:
        REQUIRE(store->get("b") == "23");
        break;
    }
  }
}

TEST_CASE("a wait goes on across the server's death, and ends when the key comes") {
  KeptMusterd keeper;
  auto waiting = connect(keeper.port());
  auto waiter = std::async(std::launch::async, [&] { return waiting->get("late", 20s); });
  auto store = connect(keeper.port());
  REQUIRE_OK(store->set("early", "1"));
  keeper.kill();
  keeper.start();
  REQUIRE_OK(store->set("late", "now"));
  const auto got = waiter.get();
  REQUIRE_OK(got);
  REQUIRE(*got == "now");
}

TEST_CASE("a wait has its time once, on however many connections") {
  const auto silent = [](Peer& peer) {
    peer.handshake();
    peer.receive(1 + 8 + 8 + 2);  // WAIT /k, and then it dies
  };
  const auto lasting = [](Peer& peer) {
    peer.handshake();
    peer.receive(1 + 8 + 8 + 2);
    peer.receive(1);  // CANCEL_WAIT
    peer.send(std::string(1, '\x01'));
    peer.wait_for_end();
  };
  FakeServer server({silent, silent, lasting});
  auto store = connect(server.port());
  const auto got = store->get("k", 300ms);
  REQUIRE_FALSE(got);
  REQUIRE(got.error().code == ErrorCode::kTimeout);
  REQUIRE_THAT(got.error().message, Catch::Contains("wait timeout after 300ms"));
}

TEST_CASE("what would not be the same twice is not sent twice: the caller is told, and can go on") {
  std::string again;
  const auto dies_on_add = [](Peer& peer) {
    peer.handshake();
    peer.receive(1 + 8 + 2 + 8);
  };
  const auto lives = [&](Peer& peer) {
    peer.handshake();
    again = peer.receive(1);
    peer.receive(8 + 8 + 2);  // CHECK /n
    peer.send(std::string(1, '\0'));
    peer.wait_for_end();
  };
  FakeServer server({dies_on_add, lives});
  auto store = connect(server.port());
  const auto sum = store->add("n", 1);
  REQUIRE_FALSE(sum);
  REQUIRE(sum.error().code == ErrorCode::kPeerGone);
  REQUIRE_THAT(sum.error().message, Catch::Contains("ADD /n") && Catch::Contains("not known whether"));
  const std::string keys[] = {"n"};
  REQUIRE(store->check(keys) == true);
  REQUIRE(again == "\x05");
}

TEST_CASE("a set whose confirmation is lost is sent again") {
  std::string second;
  const auto dies_on_set = [](Peer& peer) {
    peer.handshake();
    peer.receive(1 + 8 + 2 + 8 + 1);  // SET /k v
  };
  const auto lives = [&](Peer& peer) {
    peer.handshake();
    second = peer.receive(1 + 8 + 2 + 8 + 1);
    peer.receive(9);  // CHECK of nothing
    peer.send(std::string(1, '\0'));
    peer.wait_for_end();
  };
  FakeServer server({dies_on_set, lives});
  auto store = connect(server.port());
  REQUIRE_OK(store->set("k", "v"));
  std::string expected;
  wire::encode({.op = wire::Op::kSet, .key = "/k", .value = "v"}, expected);
  REQUIRE(second == expected);
}

TEST_CASE("a server that does not come back is given up in time, for good") {
  KeptMusterd keeper;
  auto store = connect(keeper.port(), 300ms);
  keeper.kill();
  const auto got = store->get("k");
  REQUIRE_FALSE(got);
  REQUIRE(got.error().code == ErrorCode::kPeerGone);
  REQUIRE_THAT(got.error().message, Catch::Contains("did not come back"));
  keeper.start();
  REQUIRE(store->get("k").error() == got.error());
}

TEST_CASE("without the option a lost connection stays lost") {
  KeptMusterd keeper;
  auto store = connect(keeper.port(), 0ms);
  REQUIRE_OK(store->set("k", "v"));
  REQUIRE(store->get("k") == "v");
  keeper.kill();
  keeper.start();
  const auto got = store->get("k");
  REQUIRE_FALSE(got);
  REQUIRE(got.error().code == ErrorCode::kPeerGone);
}

TEST_CASE("after an answer that was late or wrong the next operation has a connection of its own") {
  const bool late = GENERATE(false, true);
  CAPTURE(late);
  const auto fails = [late](Peer& peer) {
    peer.handshake();
    peer.receive(1 + 8 + 8 + 2);  // WAIT /k
    if (!late) peer.send("?");
    if (late) peer.receive(1);  // CANCEL_WAIT, which it does not answer
    peer.wait_for_end();
  };
  const auto lives = [](Peer& peer) {
    peer.handshake();
    peer.receive(1 + 8 + 8 + 2);  // CHECK /k
    peer.send(std::string(1, '\0'));
    peer.wait_for_end();
  };
  FakeServer server({fails, lives});
  auto store = connect(server.port());
  const std::string keys[] = {"k"};
  const auto waited = store->wait(keys, late ? 1ms : 20s);
  REQUIRE_FALSE(waited);
  REQUIRE(waited.error().code == (late ? ErrorCode::kTimeout : ErrorCode::kProtocol));
  REQUIRE(store->check(keys) == true);
}
