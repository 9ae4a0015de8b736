// SPDX-License-Identifier: Apache-2.0
#include "launcher/network/interfaces.h"

#include "tests/support/catch.h"

using namespace muster::launcher;

namespace {

using Addresses = std::vector<std::string>;

const std::vector<InterfaceAddress> kHost{
    {"lo", "127.0.0.1"},    {"docker0", "172.17.0.1"}, {"eth0", "169.254.7.7"}, {"eth0", "10.0.0.4"},
    {"lo", "::1"},          {"ib0", "fd00::4"},        {"vethab", "10.9.0.1"},  {"br-1234", "172.18.0.1"},
    {"eth1", "192.168.1.4"}};

}  // namespace

TEST_CASE("a node offers real networks first, then bridges, then link-local addresses, and no loopback") {
  REQUIRE(offered_addresses(kHost, {}) == Addresses{"10.0.0.4", "fd00::4", "192.168.1.4", "172.17.0.1",
                                                    "10.9.0.1", "172.18.0.1", "169.254.7.7"});
}

TEST_CASE("bridges of container engines and overlays of pods come after real networks") {
  for (const char* name :
       {"podman0", "nerdctl0", "lxcbr0", "lxdbr0", "incusbr0", "cali12ab", "flannel.1", "cilium_host",
        "lxc1f2e", "weave", "tunl0", "vxlan.calico", "kube-ipvs0", "vnet3"}) {
    CAPTURE(name);
    REQUIRE(offered_addresses({{name, "10.1.0.1"}, {"ens5", "10.0.0.4"}}, {}) ==
            Addresses{"10.0.0.4", "10.1.0.1"});
  }
}

TEST_CASE("the address that reaches the coordinator comes first") {
  REQUIRE(offered_addresses(kHost, {{}, {}, "192.168.1.4"}).front() == "192.168.1.4");
  REQUIRE(offered_addresses(kHost, {{}, {}, "172.18.0.1"}).front() == "172.18.0.1");
  // The coordinator is on this host, and was reached by a way that others do not have.
  REQUIRE(offered_addresses(kHost, {{}, {}, "127.0.0.1"}).front() == "10.0.0.4");
  REQUIRE(offered_addresses(kHost, {{}, {}, "1.2.3.4"}).front() == "10.0.0.4");
}

TEST_CASE("an address or an interface that was named is the only one offered") {
  REQUIRE(offered_addresses(kHost, {"192.168.1.4", {}, "10.0.0.4"}) == Addresses{"192.168.1.4"});
  REQUIRE(offered_addresses(kHost, {{}, "ib0", "10.0.0.4"}) == Addresses{"fd00::4"});
  REQUIRE(offered_addresses(kHost, {{}, "lo", {}}) == Addresses{"127.0.0.1", "::1"});
  REQUIRE(offered_addresses(kHost, {{}, "eth7", {}}).empty());
  // A mere name is for messages.
  REQUIRE(offered_addresses(kHost, {"node-a", "ib0", {}}) == Addresses{"fd00::4"});
}

TEST_CASE("loopback is offered where there is nothing else, and no list is endless") {
  REQUIRE(offered_addresses({{"lo", "127.0.0.1"}}, {{}, {}, "127.0.0.1"}) == Addresses{"127.0.0.1"});
  std::vector<InterfaceAddress> many;
  for (int i = 0; i < 40; ++i) many.push_back({"eth0", "10.0.0." + std::to_string(i)});
  REQUIRE(offered_addresses(many, {}).size() == kMaxOffered);
}

TEST_CASE("an address that this host has too is tried last") {
  REQUIRE(addresses_to_try({"172.17.0.1", "10.0.0.5", "192.168.1.5"}, kHost) ==
          Addresses{"10.0.0.5", "192.168.1.5", "172.17.0.1"});
}

TEST_CASE("an endpoint names this host by loopback, name or an interface's address in any spelling") {
  for (const char* here : {"localhost", "127.3.2.1", "::1", "node-a", "10.0.0.4", "fd00:0:0:0:0:0:0:4"})
    REQUIRE(names_this_host(here, kHost, "node-a"));
  for (const char* elsewhere : {"10.0.0.5", "node-b", "fd00::5", ""})
    REQUIRE_FALSE(names_this_host(elsewhere, kHost, "node-a"));
  REQUIRE_FALSE(names_this_host("", kHost, ""));
}

TEST_CASE("the kernel tells this host's addresses and the one towards a destination") {
  const auto own = interface_addresses();
  REQUIRE(interface_of(own, "127.0.0.1") == "lo");
  for (const InterfaceAddress& entry : own) REQUIRE_FALSE(entry.address.starts_with("fe80:"));
  REQUIRE(source_address("127.0.0.1") == "127.0.0.1");
  REQUIRE(source_address("no-address").empty());
}
