// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/base/collective.h"

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "tests/support/catch.h"
#include "worker_runtime/groups/base/comm_queue.h"
#include "worker_runtime/groups/base/meeting.h"
#include "worker_runtime/groups/tcp/tcp_group.h"

using namespace muster;
using namespace muster::groups;

TEST_CASE("slices cover every element once and begin at cache lines") {
  for (const std::size_t element : {1, 2, 4, 8})
    for (const std::size_t count : {0, 1, 15, 16, 17, 1000, 1009, 4096, 100003})
      for (const int parts : {1, 2, 3, 5, 8, 64}) {
        std::size_t next = 0;
        for (int i = 0; i < parts; ++i) {
          const Slice slice = slice_of(count, element, i, parts);
          REQUIRE(slice.begin == next);
          REQUIRE((slice.begin * element % 64 == 0 || slice.begin == count));
          next = slice.end;
        }
        REQUIRE(next == count);
      }
}

TEST_CASE("a mismatch names the first rank that differs and both operations") {
  const OpDescriptor sum{.sequence = 7, .count = 100, .kind = OpKind::kAllReduce, .dtype = DType::kFloat32};
  OpDescriptor other = sum;
  const int ranks[] = {4, 6, 9};
  REQUIRE_FALSE(find_mismatch(std::vector{sum, sum, sum}, ranks));
  other.kind = OpKind::kBroadcast;
  other.root = 2;
  REQUIRE(find_mismatch(std::vector{sum, sum, other}, ranks) ==
          "ranks disagree on operation #7: rank 4 called all_reduce(F32 x 100, sum), rank 9 called "
          "broadcast(F32 x "
          "100, root 2); every rank must call the same operations in the same order");
}

TEST_CASE("hosts are numbered by their first rank") {
  const std::string ids[] = {"b", "a", "b", "c", "a"};
  REQUIRE(group_by_host(ids) == std::vector<std::vector<int>>{{0, 2}, {1, 4}, {3}});
}

TEST_CASE("the host's identity is the same for its processes and can be set") {
  REQUIRE(host_id({}) == host_id({}));
  REQUIRE_FALSE(host_id({}).empty());
  REQUIRE(host_id({{"MUSTER_HOST_ID", "node7"}}) == "node7");
  REQUIRE(host_id({{"MUSTER_HOST_ID", ""}}) == host_id({}));
}

TEST_CASE("on a loopback route loopback is the first address to try, else the last") {
  const auto near = own_addresses("127.0.0.1");
  REQUIRE((near.front().starts_with("127.") || near.front() == "::1"));
  const auto any = own_addresses("");
  REQUIRE((any.back().starts_with("127.") || any.back() == "::1"));
}

TEST_CASE("lists of ranks read as people write them") {
  REQUIRE(rank_list(std::vector{3}) == "rank 3");
  REQUIRE(rank_list(std::vector{1, 2}) == "ranks 1 and 2");
  REQUIRE(rank_list(std::vector{1, 2, 5}) == "ranks 1, 2 and 5");
}

TEST_CASE("queued operations run once, in order, whoever runs them") {
  CommQueue queue;
  std::vector<int> order;
  std::vector<std::unique_ptr<Work>> works;
  for (int i = 0; i < 100; ++i)
    works.push_back(queue.start([&order, i](bool) -> Result<void> {
      order.push_back(i);
      return {};
    }));
  REQUIRE_OK(works[50]->wait());
  queue.drain();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  REQUIRE(order == expected);
}

TEST_CASE("work that outlives its queue reports that it was cancelled or how it ended") {
  std::unique_ptr<Work> late;
  std::unique_ptr<Work> failed;
  {
    CommQueue queue;
    failed = queue.start([](bool) -> Result<void> { return fail(ErrorCode::kTimeout, "slow"); });
    queue.drain();
    queue.cancel();
    late = queue.start([](bool) -> Result<void> { return {}; });
  }
  REQUIRE(failed->wait().error().message == "slow");
  REQUIRE(late->wait().error().code == ErrorCode::kCancelled);
}

TEST_CASE("a started operation tells when it ran beside the caller") {
  using Clock = std::chrono::steady_clock;
  CommQueue queue;
  std::atomic<bool> begun = false, may_end = false;
  const Clock::time_point before = Clock::now();
  const auto work = queue.start([&](bool own_thread) -> Result<void> {
    begun = own_thread;
    while (!may_end) std::this_thread::yield();
    return {};
  });
  while (!begun) std::this_thread::yield();
  const Clock::time_point seen = Clock::now();
  may_end = true;
  REQUIRE_OK(work->wait());
  const Clock::time_point after = Clock::now();
  REQUIRE(work->times().beside);
  REQUIRE(work->times().begun >= before);
  REQUIRE(work->times().begun <= seen);
  REQUIRE(work->times().ended >= seen);
  REQUIRE(work->times().ended <= after);
}
