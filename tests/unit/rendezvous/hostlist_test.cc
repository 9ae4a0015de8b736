// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/base/hostlist.h"

#include <string>

#include "tests/support/catch.h"

using namespace muster;

namespace {

using Names = std::vector<std::string>;

Names expanded(std::string_view text) {
  auto names = expand_hostlist(text);
  REQUIRE_OK(names);
  return *std::move(names);
}

std::string refusal(std::string_view text) {
  const auto names = expand_hostlist(text);
  REQUIRE_FALSE(names);
  REQUIRE(names.error().code == ErrorCode::kInvalidArgument);
  return names.error().message;
}

bool says(std::string_view text, std::string_view part) {
  return refusal(text).find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a node list is written out in its own order") {
  REQUIRE(expanded("login-2") == Names{"login-2"});
  REQUIRE(expanded("b,a,b") == Names{"b", "a", "b"});
  REQUIRE(expanded("gpu[001-004,7],login-2,rack[1-2]n[01-03]") ==
          Names{"gpu001", "gpu002", "gpu003", "gpu004", "gpu7", "login-2", "rack1n01", "rack1n02", "rack1n03",
                "rack2n01", "rack2n02", "rack2n03"});
}

TEST_CASE("zeros in front of a range's first number fix the width") {
  REQUIRE(expanded("n[08-11]") == Names{"n08", "n09", "n10", "n11"});
  REQUIRE(expanded("n[8-11]") == Names{"n8", "n9", "n10", "n11"});
  REQUIRE(expanded("n[098-100,5]") == Names{"n098", "n099", "n100", "n5"});
  REQUIRE(expanded("n[9-010]") == Names{"n9", "n10"});
}

TEST_CASE("brackets may stand anywhere in a name") {
  REQUIRE(expanded("[1-2]") == Names{"1", "2"});
  REQUIRE(expanded("a[1-2]-ib.x") == Names{"a1-ib.x", "a2-ib.x"});
  REQUIRE(expanded("a[1-2][3-4]") == Names{"a13", "a14", "a23", "a24"});
  REQUIRE(expanded("0x7f[000001-000002]") == Names{"0x7f000001", "0x7f000002"});
}

TEST_CASE("what is no node list is refused with the entry at fault") {
  REQUIRE(says("", "entry '': empty"));
  REQUIRE(says("a,,b", "empty"));
  REQUIRE(says("a,", "empty"));
  REQUIRE(says("ok,n[1-2", "entry 'n[1-2': ] is missing"));
  REQUIRE(says("n1]", "made of letters"));
  REQUIRE(says("n 1", "made of letters"));
  REQUIRE(says("n[]", "numbers and ranges"));
  REQUIRE(says("n[1-]", "numbers and ranges"));
  REQUIRE(says("n[-1]", "numbers and ranges"));
  REQUIRE(says("n[a-b]", "numbers and ranges"));
  REQUIRE(says("n[1,[2]]", "numbers and ranges"));
  REQUIRE(says("n[3-1]", "smaller number"));
  REQUIRE(says("a\x1b[31m", R"(entry 'a\x1b[31m')"));
}

TEST_CASE("a node list that would not end is refused before it is written out") {
  REQUIRE(expanded("n[1-65536]").size() == kMaxHosts);
  REQUIRE(says("n[0-65536]", "more than 65536 nodes"));
  REQUIRE(says("n[1-65536],m", "more than 65536 nodes"));
  REQUIRE(says("n[0-999999999999999999]", "more than 65536 nodes"));
  REQUIRE(says("a[0-999999]b[0-999999]c[0-999999]d[0-999999]", "more than 65536 nodes"));
  REQUIRE(says("n[0-9999999999999999999]", "numbers and ranges"));  // more than 64 bits
  REQUIRE(says("[1][1][1][1][1][1][1][1][1]", "too many brackets"));
  REQUIRE(expanded(std::string(kMaxHostName, 'a')).size() == 1);
  REQUIRE(says(std::string(kMaxHostName, 'a') + "[1]", "too long"));
  REQUIRE(refusal(std::string(100'000, 'a')).size() < 200);
}
