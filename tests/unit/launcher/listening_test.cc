// SPDX-License-Identifier: Apache-2.0
#include "launcher/network/listening.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/support/catch.h"
#include "tests/support/held_port.h"

using namespace muster;
using namespace muster::launcher;

namespace {

using Addresses = std::vector<std::string>;

const std::vector<InterfaceAddress> kHost{
    {"lo", "127.0.0.1"}, {"eth0", "10.0.0.4"}, {"ib0", "10.1.0.4"}, {"ib0", "fd00::4"}};

ElasticJob wishes(const std::string& local_addr, const std::string& interface) {
  ElasticJob out;
  out.local_addr = local_addr;
  out.interface = interface;
  return out;
}

Addresses chosen(const ElasticJob& job) {
  return listening_addresses(job, offered_addresses(kHost, {job.local_addr, job.interface, {}}), kHost);
}

bool accepts(const std::string& address, std::uint16_t port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  REQUIRE(::inet_pton(AF_INET, address.c_str(), &to.sin_addr) == 1);
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
}

}  // namespace

TEST_CASE("a node listens on every address unless an interface or an address was chosen") {
  REQUIRE(chosen(wishes("", "")).empty());
  REQUIRE(chosen(wishes("node-a", "")).empty());
  REQUIRE(chosen(wishes("", "ib0")) == Addresses{"10.1.0.4", "fd00::4"});
  REQUIRE(chosen(wishes("node-a", "eth0")) == Addresses{"10.0.0.4"});
  REQUIRE(chosen(wishes("10.1.0.4", "")) == Addresses{"10.1.0.4"});
  REQUIRE(chosen(wishes("fd00:0:0::4", "")) == Addresses{"fd00:0:0::4"});
}

TEST_CASE("an address of another host is offered, cannot be listened at, and that is said") {
  REQUIRE(chosen(wishes("192.0.2.1", "")).empty());
  const auto text = unconfined_text(wishes("192.0.2.1", ""), {});
  REQUIRE(text);
  REQUIRE_THAT(*text, Catch::Contains("--local-addr=192.0.2.1 is no address of this host"));
  REQUIRE_FALSE(unconfined_text(wishes("10.1.0.4", ""), {"10.1.0.4"}));
  REQUIRE_FALSE(unconfined_text(wishes("node-a", ""), {}));
}

TEST_CASE("who offers loopback alone listens there alone") {
  REQUIRE(listening_addresses(wishes("", ""), {"127.0.0.1"}, kHost) == Addresses{"127.0.0.1"});
}

TEST_CASE("a job that meets at loopback stays on its host, unless each host has an etcd there") {
  Job job;
  job.nodes = 2;
  job.elastic.endpoint_host = "127.0.0.1";
  REQUIRE(stays_on_host(job));
  job.elastic.local_addr = "10.0.0.4";
  REQUIRE(stays_on_host(job));
  job.elastic.etcd.emplace();
  REQUIRE_FALSE(stays_on_host(job));
  job.elastic.local_addr.clear();
  REQUIRE(stays_on_host(job));
  job.elastic.interface = "ib0";
  REQUIRE_FALSE(stays_on_host(job));
}

TEST_CASE("a place that is named by an address is listened at, and nothing beside it") {
  const Addresses ib = chosen(wishes("", "ib0"));
  REQUIRE(addresses_at("10.0.0.4", ib, kHost) == Addresses{"10.0.0.4"});
  REQUIRE(addresses_at("fd00::0004", ib, kHost) == Addresses{"fd00::0004"});
  REQUIRE(addresses_at("node-a", ib, kHost) == ib);
  REQUIRE(addresses_at("192.0.2.1", ib, kHost) == ib);
  REQUIRE(addresses_at("10.0.0.4", {}, kHost).empty());
  REQUIRE(connect_address(ib) == "10.1.0.4");
  REQUIRE(connect_address({}) == "127.0.0.1");
}

TEST_CASE("a name that leads to an address that was not chosen is listened at too, and that is said") {
  const ElasticJob job = wishes("", "ib0");
  const Addresses ib = chosen(job);
  const auto text = [&](const Addresses& found) { return name_warning("node-a", found, ib, job, kHost); };
  REQUIRE(further_addresses({"10.0.0.4", "10.0.0.4"}, ib, kHost) == Addresses{"10.0.0.4"});
  REQUIRE_THAT(text({"10.0.0.4"}),
               Catch::Contains("node-a is 10.0.0.4 (eth0) on this host") &&
                   Catch::Contains("it listens there in spite of --iface=ib0; name 10.1.0.4 to all nodes"));
  // The others find one that was chosen, or this host does not know what leads to it.
  for (const Addresses& found : {Addresses{"10.0.0.4", "fd00::4"}, {"fd00::4"}, {"192.0.2.1"}, {}}) {
    REQUIRE(further_addresses(found, ib, kHost).empty());
    REQUIRE(text(found).empty());
  }
  REQUIRE(further_addresses({"10.0.0.4"}, {}, kHost).empty());
  REQUIRE(name_warning("node-a", {"10.0.0.4"}, {}, wishes("", ""), kHost).empty());
}

TEST_CASE("a name that is loopback on its own host is no reason to listen elsewhere, but to say so") {
  const ElasticJob job = wishes("", "ib0");
  REQUIRE(further_addresses({"127.0.1.1"}, chosen(job), kHost).empty());
  REQUIRE_THAT(name_warning("node-a", {"127.0.1.1"}, chosen(job), job, kHost),
               Catch::Contains("node-a is 127.0.1.1 on this host") &&
                   Catch::Contains("the coordinator listens at 10.1.0.4"));
  // Of a job within this host it is the place itself.
  REQUIRE(further_addresses({"127.0.1.1"}, {"127.0.0.1"}, kHost) == Addresses{"127.0.1.1"});
}

TEST_CASE("a listener of several addresses has one port, at these addresses only") {
  const test::HeldPort elsewhere;
  auto listener = listen_at({"127.0.0.2", "127.0.0.3"}, elsewhere.number());
  REQUIRE_OK(listener);
  REQUIRE(listener->fds.size() == 2);
  REQUIRE(listener->loopback_only);
  REQUIRE(accepts("127.0.0.2", listener->port));
  REQUIRE(accepts("127.0.0.3", listener->port));
  REQUIRE_FALSE(accepts("127.0.0.1", listener->port));
  const std::string port = std::to_string(listener->port);
  REQUIRE(listener->address == "127.0.0.2:" + port + " 127.0.0.3:" + port);
}

TEST_CASE("an address that this host has not is left out, and a port that is taken is not") {
  auto listener = listen_at({"192.0.2.1", "127.0.0.2"}, 0);
  REQUIRE_OK(listener);
  REQUIRE(listener->fds.size() == 1);
  REQUIRE_FALSE(listen_at({"192.0.2.1"}, 0));
  const auto busy = listen_at({"127.0.0.4", "127.0.0.2"}, listener->port);
  REQUIRE_FALSE(busy);
  REQUIRE(busy.error().code == ErrorCode::kExhausted);
  REQUIRE_FALSE(accepts("127.0.0.4", listener->port));
}

TEST_CASE("a held port of the tests is nobody else's, on any address") {
  const test::HeldPort held;
  for (const char* host : {"127.0.0.1", "127.0.0.2"}) {
    const UniqueFd other(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(held.number());
    REQUIRE(::inet_pton(AF_INET, host, &address.sin_addr) == 1);
    INFO(host);
    REQUIRE(::bind(other.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0);
    REQUIRE(errno == EADDRINUSE);
  }
}
