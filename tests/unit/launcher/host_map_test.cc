// SPDX-License-Identifier: Apache-2.0
#include "launcher/network/host_map.h"

#include <cstdio>
#include <fstream>

#include "launcher/plan/rendezvous_plan.h"
#include "tests/support/catch.h"
#include "tests/support/fieldwise.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;
using muster::test::TemporaryDirectory;

namespace {

HostMap map_of(const std::string& text) {
  auto map = HostMap::read(text);
  REQUIRE_OK(map);
  return *std::move(map);
}

std::string refusal(const std::string& text) {
  const auto map = HostMap::read(text);
  REQUIRE_FALSE(map);
  REQUIRE(map.error().code == ErrorCode::kInvalidArgument);
  return map.error().message;
}

}  // namespace

TEST_CASE("a name that is mapped is looked for elsewhere, another one where it was") {
  const HostMap map = map_of("node0=10.0.0.1, node1 = fd00::1,node2=node2-ib");
  REQUIRE(map.find("node0") == "10.0.0.1");
  REQUIRE(map.find("node1") == "fd00::1");
  REQUIRE(map.find("node2") == "node2-ib");
  REQUIRE(map.find("node3") == "node3");
  REQUIRE(map.find("") == "");
}

TEST_CASE("a suffix is added to all names, but not to addresses and localhost") {
  const HostMap map = map_of("*=*i");
  REQUIRE(map.find("jwb0001") == "jwb0001i");
  for (const char* left : {"10.0.0.1", "fd00::1", "127.0.0.1", "localhost", "::1"})
    REQUIRE(map.find(left) == left);
}

TEST_CASE("a pattern keeps what is before and behind its star") {
  const HostMap map = map_of("*.cluster=*i.cluster,gpu*=10.1.0.*,login=x");
  REQUIRE(map.find("n7.cluster") == "n7i.cluster");
  REQUIRE(map.find("gpu12") == "10.1.0.12");
  REQUIRE(map.find(".cluster") == "i.cluster");
  REQUIRE(map.find("cluster") == "cluster");
}

TEST_CASE(
    "a name's own entry comes before any pattern, then the first pattern, and what comes out is not mapped "
    "again") {
  const HostMap map = map_of("*=*i,n1*=*x,n10=head,n1i=never");
  REQUIRE(map.find("n10") == "head");
  REQUIRE(map.find("n11") == "n11i");
  REQUIRE(map.find("n1") == "n1i");
}

TEST_CASE("an address that is named in full is mapped too") {
  REQUIRE(map_of("10.0.0.1=192.168.0.1").find("10.0.0.1") == "192.168.0.1");
}

TEST_CASE("a file has an entry on each line, comments and empty lines") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/hosts";
  std::ofstream(path) << "# the fast network\n\nnode0 = 10.0.0.1  # head\r\n*=*i\n";
  const HostMap map = map_of(path);
  REQUIRE(map.find("node0") == "10.0.0.1");
  REQUIRE(map.find("node1") == "node1i");
  std::ofstream(path) << "node0=10.0.0.1\nnode1\n";
  REQUIRE(refusal(path) == "--host-map=" + path + " line 2: 'node1': not NAME=HOST");
}

TEST_CASE("what cannot be a map is refused with the entry") {
  REQUIRE_THAT(refusal("/nowhere/at/all"),
               Catch::Contains("--host-map=/nowhere/at/all: there is no such file; or give NAME=HOST"));
  const TemporaryDirectory directory;
  REQUIRE_THAT(refusal(directory.path()), Catch::Contains("Is a directory"));
  std::ofstream(directory.path() + "/large").seekp(17 << 20) << "\n";
  REQUIRE_THAT(refusal(directory.path() + "/large"), Catch::Contains("larger than 16777216 bytes"));
  REQUIRE(refusal("a=b,c") == "--host-map: 'c': not NAME=HOST");
  REQUIRE(refusal("a=b,") == "--host-map: '': not NAME=HOST");
  REQUIRE(refusal("=b") == "--host-map: '=b': the name is empty");
  REQUIRE(refusal("a=") == "--host-map: 'a=': the host is empty");
  REQUIRE(refusal("a b=c") == "--host-map: 'a b=c': the name is neither a name nor an address");
  REQUIRE(refusal("a=b=c") == "--host-map: 'a=b=c': the host is neither a name nor an address");
  REQUIRE(refusal("*-*=x") == "--host-map: '*-*=x': the name has more than one *");
  REQUIRE_THAT(refusal("a=*i"), Catch::Contains("'a=*i': the host's * stands for what the name's * found"));
  REQUIRE(refusal("a=b,c=d,a=e") == "--host-map: a is there twice");
  REQUIRE_THAT(refusal(std::string(300, 'a') + "=b"), Catch::Contains("the name has more than 253 bytes"));
}

TEST_CASE("endpoint and master are mapped, whoever named them, and ports stay") {
  Options options;
  options.host_map = "a=fd00::1,b=10.0.0.2,*=*i";
  options.rdzv_endpoint = "a:29400";
  options.master_addr = "n1";
  auto mapped = map_hosts(options);
  REQUIRE_OK(mapped);
  REQUIRE(mapped->rdzv_endpoint == "[fd00::1]:29400");
  REQUIRE(mapped->master_addr == "n1i");
  options.rdzv_endpoint = "a,b:1,[::1]:2,c";
  mapped = map_hosts(options);
  REQUIRE_OK(mapped);
  REQUIRE(mapped->rdzv_endpoint == "[fd00::1],10.0.0.2:1,[::1]:2,ci");
  options.host_map.clear();
  mapped = map_hosts(options);
  REQUIRE_OK(mapped);
  REQUIRE(*mapped == options);
}
