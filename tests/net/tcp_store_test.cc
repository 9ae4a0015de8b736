// SPDX-License-Identifier: Apache-2.0
// The blocking client against the server, over real sockets.
#include <future>
#include <thread>

#include <muster/store_server.h>
#include <muster/tcp_store.h>

#include "tests/support/catch.h"
#include "tests/support/held_port.h"

using namespace muster;
using namespace std::chrono_literals;

namespace {

struct Fixture {
  Fixture() {
    auto started = StoreServer::start({.host = "127.0.0.1"});
    REQUIRE_OK(started);
    server = *std::move(started);
  }
  std::unique_ptr<TcpStore> client(std::int64_t world_size = -1, Store::Timeout timeout = 30s) const {
    auto connected = TcpStore::connect({"127.0.0.1", server->port(), world_size, timeout});
    REQUIRE_OK(connected);
    return *std::move(connected);
  }
  std::unique_ptr<StoreServer> server;
};

using Keys = std::vector<std::string>;

}  // namespace

TEST_CASE("values that one client sets are read by another") {
  const Fixture f;
  const auto a = f.client();
  const auto b = f.client();
  REQUIRE_OK(a->set("k", "v"));
  REQUIRE(b->get("k") == "v");
  const std::string binary("\0\xff\n", 3);
  REQUIRE_OK(a->set(binary, binary));
  REQUIRE(b->get(binary) == binary);
  REQUIRE_OK(a->set("big", std::string(8 << 20, 'x')));
  REQUIRE(b->get("big") == std::string(8 << 20, 'x'));
  REQUIRE(a->get("k") == "v");
}

TEST_CASE("compare_set stores on a match and reports the current value otherwise") {
  const Fixture f;
  const auto a = f.client();
  REQUIRE(a->compare_set("nk", "zz", "q") == "zz");
  REQUIRE(a->check(Keys{"nk"}) == false);
  REQUIRE(a->compare_set("nk", "", "q") == "q");
  REQUIRE(a->compare_set("nk", "other", "r") == "q");
  REQUIRE(a->compare_set("nk", "q", "r") == "r");
}

TEST_CASE("counters, appends, deletes and key counts work over the wire") {
  const Fixture f;
  const auto a = f.client(4);
  REQUIRE(a->num_keys() == 1);  // init/
  REQUIRE(a->add("n", 5) == 5);
  REQUIRE(a->add("n", -7) == -2);
  REQUIRE(a->get("n") == "-2");
  REQUIRE_OK(a->append("t", "x"));
  REQUIRE_OK(a->append("t", "y"));
  REQUIRE(a->get("t") == "xy");
  REQUIRE(a->delete_key("t") == true);
  REQUIRE(a->delete_key("t") == false);
  REQUIRE(a->num_keys() == 2);
  REQUIRE(a->list_keys() == Keys{"n"});
}

TEST_CASE("multi_set and multi_get keep the order of their keys") {
  const Fixture f;
  const auto a = f.client();
  REQUIRE_OK(a->multi_set(std::vector<std::pair<std::string, std::string>>{{"m1", "x"}, {"m2", ""}}));
  REQUIRE(a->multi_get(Keys{"m2", "m1", "m2"}) == Keys{"", "x", ""});
}

TEST_CASE("a get waits until another client sets the key") {
  const Fixture f;
  const auto a = f.client();
  const auto b = f.client();
  auto value = std::async(std::launch::async, [&] { return a->get("late"); });
  REQUIRE_OK(b->set("late", "1"));
  REQUIRE(value.get() == "1");
}

TEST_CASE("a wait that times out names its keys and leaves the connection usable") {
  const Fixture f;
  const auto a = f.client();
  const auto result = a->wait(Keys{"x", "y"}, 20ms);
  REQUIRE_FALSE(result);
  REQUIRE(result.error().code == ErrorCode::kTimeout);
  REQUIRE_THAT(result.error().message, Catch::StartsWith("wait timeout after 20ms, keys: /x, /y"));
  REQUIRE_THAT(result.error().message, Catch::Contains("127.0.0.1:" + std::to_string(f.server->port())));
  REQUIRE_FALSE(a->get("x", 0ms));
  REQUIRE_OK(a->set("x", "1"));
  REQUIRE(a->get("x") == "1");
}

TEST_CASE("a queue gives each element to one client, oldest first") {
  const Fixture f;
  const auto a = f.client();
  const auto b = f.client();
  REQUIRE(a->queue_len("q") == 0);
  const auto empty = a->queue_pop("q", false);
  REQUIRE_FALSE(empty);
  REQUIRE(empty.error().code == ErrorCode::kNotFound);
  auto popped = std::async(std::launch::async, [&] { return a->queue_pop("q"); });
  REQUIRE_OK(b->queue_push("q", "1"));
  REQUIRE(popped.get() == "1");
  REQUIRE_OK(b->queue_push("q", "2"));
  REQUIRE_OK(b->queue_push("q", "3"));
  REQUIRE(b->queue_len("q") == 2);
  REQUIRE(a->queue_pop("q") == "2");
  REQUIRE(a->queue_pop("q") == "3");
}

TEST_CASE("a barrier opens when its last participant arrives") {
  const Fixture f;
  const auto a = f.client();
  const auto b = f.client();
  const auto alone = a->barrier("lonely", 2, 20ms);
  REQUIRE_FALSE(alone);
  REQUIRE_THAT(alone.error().message, Catch::StartsWith("barrier timeout after 20ms, key: lonely"));
  auto first = std::async(std::launch::async, [&] { return a->barrier("b", 2); });
  REQUIRE_OK(b->barrier("b", 2));
  REQUIRE_OK(first.get());
}

TEST_CASE("a clone has its own connection and does not check in again") {
  const Fixture f;
  const auto a = f.client(2);
  auto b = a->clone();
  REQUIRE_OK(b);
  REQUIRE_OK((*b)->set("k", "v"));
  REQUIRE(a->num_keys() == 2);
  REQUIRE(a->get("k") == "v");
}

TEST_CASE("a client whose server went away keeps its first error") {
  Fixture f;
  const auto a = f.client();
  const std::string port = std::to_string(f.server->port());
  f.server.reset();
  const auto first = a->add("n", 1);
  REQUIRE_FALSE(first);
  REQUIRE(first.error().code == ErrorCode::kPeerGone);
  REQUIRE_THAT(first.error().message, Catch::Contains("ADD /n") && Catch::Contains("127.0.0.1:" + port));
  const auto second = a->get("other");
  REQUIRE_FALSE(second);
  REQUIRE(second.error() == first.error());
}

TEST_CASE("a timeout may be without end") {
  const Fixture f;
  const auto client = f.client(-1, Store::Timeout::max());
  REQUIRE(client->add("n", 2) == 2);
  REQUIRE(client->get("n") == "2");
}

TEST_CASE("connecting waits for a server that starts later") {
  const test::HeldPort place;
  const std::uint16_t port = place.number();
  auto connected = std::async(std::launch::async, [&] {
    return TcpStore::connect({"127.0.0.1", port, -1, 30s});
  });
  const auto server = StoreServer::start({.host = "127.0.0.1", .port = port});
  REQUIRE_OK(server);
  REQUIRE_OK(connected.get());
}

TEST_CASE("connecting to nobody fails by its deadline with the address and the cause") {
  const test::HeldPort nobody;
  const std::uint16_t port = nobody.number();
  const auto result = TcpStore::connect({"127.0.0.1", port, -1, 100ms});
  REQUIRE_FALSE(result);
  REQUIRE_THAT(result.error().message,
               Catch::Contains("127.0.0.1:" + std::to_string(port)) && Catch::Contains("ECONNREFUSED"));
}

TEST_CASE("a busy port's error names the address, the port and the process that holds it") {
  const Fixture f;
  const auto second = StoreServer::start({.host = "127.0.0.1", .port = f.server->port()});
  REQUIRE_FALSE(second);
  REQUIRE_THAT(second.error().message,
               Catch::StartsWith("The server socket has failed to listen on any local network address") &&
                   Catch::Contains("port: " + std::to_string(f.server->port())) &&
                   Catch::Contains("pid " + std::to_string(::getpid()) + " (") &&
                   Catch::Contains("net_tcp_store"));
}
