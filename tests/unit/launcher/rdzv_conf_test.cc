// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/rdzv_conf.h"

#include <iterator>

#include "tests/support/catch.h"
#include "tests/support/fieldwise.h"

using namespace muster;
using namespace muster::launcher;
using namespace std::chrono_literals;

namespace {

ElasticConf conf(std::string_view text) {
  auto out = parse_elastic_conf(text);
  REQUIRE_OK(out);
  return *out;
}

std::string refusal(std::string_view text) {
  const auto out = parse_elastic_conf(text);
  REQUIRE_FALSE(out);
  REQUIRE(out.error().code == ErrorCode::kInvalidArgument);
  return out.error().message;
}

}  // namespace

TEST_CASE("without keys torchrun's defaults hold") {
  REQUIRE(conf("") == ElasticConf{});
  REQUIRE(conf(" ").join_timeout == 600s);
  REQUIRE(conf("").last_call_timeout == 30s);
  REQUIRE(conf("").keep_alive_interval * conf("").keep_alive_max_attempt == 15s);
}

TEST_CASE("keys of the dynamic rendezvous are seconds, and fractions are allowed") {
  ElasticConf expected;
  expected.join_timeout = 12s;
  expected.last_call_timeout = 250ms;
  expected.keep_alive_interval = 2s;
  expected.keep_alive_max_attempt = 4;
  expected.cool_down = 0s;
  expected.read_timeout = 5s;
  expected.stop_timeout = 9s;
  expected.reconnect_timeout = 1s;
  expected.is_host = true;
  expected.unused = 5s;
  REQUIRE(conf("join_timeout=12, last_call_timeout = "
               "0.25,keep_alive_interval=2,keep_alive_max_attempt=4,cool_down=0,"
               "read_timeout=5,stop_timeout=9,reconnect_timeout=1,is_host=Yes,store_type=tcp,close_timeout=3,"
               "heartbeat_timeout=5") == expected);
}

TEST_CASE("timeout is the join timeout where that is not given") {
  REQUIRE(conf("timeout=7").join_timeout == 7s);
  REQUIRE(conf("timeout=7,join_timeout=8").join_timeout == 8s);
  REQUIRE(conf("join_timeout=8,timeout=7").join_timeout == 8s);
}

TEST_CASE("is_host knows torchrun's words") {
  for (const char* yes : {"1", "true", "T", "yes", "Y"})
    REQUIRE(conf(std::string("is_host=") + yes).is_host == true);
  for (const char* no : {"0", "False", "f", "NO", "n"})
    REQUIRE(conf(std::string("is_host=") + no).is_host == false);
  REQUIRE_THAT(refusal("is_host=maybe"), Catch::Contains("true or false"));
}

TEST_CASE("what is wrong is refused with what is right") {
  REQUIRE_THAT(refusal("join_timeuot=3"),
               Catch::Contains("unknown key join_timeuot; the nearest is join_timeout"));
  REQUIRE_THAT(refusal("last_call_time=3"), Catch::Contains("the nearest is last_call_timeout"));
  REQUIRE_THAT(refusal("join_timeout"), Catch::Contains("key=value"));
  REQUIRE_THAT(refusal("join_timeout="), Catch::Contains("key=value"));
  REQUIRE_THAT(refusal("=3"), Catch::Contains("key=value"));
  for (const char* bad : {"store_type=file", "store_type=file,store_type=tcp"})
    REQUIRE_THAT(refusal(bad), Catch::Contains("store_type=file: the coordinator is reached by TCP only"));
  REQUIRE_THAT(refusal("protocol=ftp,protocol=http"),
               Catch::Contains("protocol=ftp: http or https is right"));
  REQUIRE_THAT(refusal("etcd_prefix=///"), Catch::Contains("etcd_prefix=///: 1 to 255 characters are right"));
  for (const char* bad : {"0", "-1", "x", "1s", "nan", "1e99"})
    REQUIRE_THAT(refusal(std::string("join_timeout=") + bad), Catch::Contains("seconds from"));
  REQUIRE_THAT(refusal("keep_alive_max_attempt=0"), Catch::Contains("keep_alive_max_attempt"));
}

TEST_CASE("a value may contain the sign that separates it from its key") {
  REQUIRE(split_rdzv_conf("a=b=c, d = e").value() == ConfPairs{{"a", "b=c"}, {"d", "e"}});
}
