// SPDX-License-Identifier: Apache-2.0
// Two members of a tcp group find each other over loopback.
#include <future>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/raw_client.h"
#include "worker_runtime/groups/tcp/tcp_group.h"
#include "worker_runtime/groups/tcp/tcp_hello.h"

using namespace muster;
using namespace muster::groups;

namespace {

TcpConnectOptions member(int me) {
  TcpConnectOptions out;
  out.ranks = {0, 1};
  out.me = me;
  out.timeout = std::chrono::seconds(20);
  out.address = "127.0.0.1";
  return out;
}

}  // namespace

TEST_CASE("unauthenticated peers that connect and send nothing, however many, keep no member out") {
  std::promise<std::string> told[2];
  std::shared_future<std::string> texts[2] = {told[0].get_future().share(), told[1].get_future().share()};
  const auto both = [&]() -> Result<std::vector<std::string>> {
    for (const auto& text : texts)
      if (text.wait_for(std::chrono::seconds(20)) != std::future_status::ready)
        return fail(ErrorCode::kTimeout, "the other member said nothing");
    return std::vector{texts[0].get(), texts[1].get()};
  };
  auto other = std::async(std::launch::async, [&] {
    return connect_members(member(1), [&](const std::string& text) {
      told[1].set_value(text);
      return both();
    });
  });
  std::vector<test::RawClient> unauthenticated;
  const auto peers =
      connect_members(member(0), [&](const std::string& text) -> Result<std::vector<std::string>> {
        MUSTER_TRY(const Whereabouts where, read_whereabouts(text));
        for (int i = 0; i < 200; ++i) unauthenticated.emplace_back(where.port);
        told[0].set_value(text);
        return both();
      });
  REQUIRE_OK(other.get());
  REQUIRE_OK(peers);
  REQUIRE(peers->size() == 2);
  REQUIRE((*peers)[1].socket);
}
