// SPDX-License-Identifier: Apache-2.0
// What the other ranks learn when one of them disagrees, dies, stops or leaves. Real processes and signals.
#include <csignal>
#include <filesystem>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/file_store.h>

#include "tests/support/catch.h"
#include "tests/support/group_world.h"

using namespace muster;
using namespace muster::testing;
using namespace std::chrono_literals;

namespace {

struct Shape {
  const char* name;
  Backend backend;
  std::vector<std::string> host_ids = {};
};
const std::vector<Shape> kShapes = {{"shm", Backend::kShm, {}},
                                    {"tcp", Backend::kTcp, {}},
                                    {"hierarchical", Backend::kAuto, {"a", "a", "b"}}};

Result<void> all_reduce(ProcessGroup& group, std::size_t count) {
  std::vector<float> data(count, 1.0f);
  return group.all_reduce({data.data(), count, DType::kFloat32});
}

/// "<code>: <text>" of the failure, and that it sticks.
std::string failure_text(ProcessGroup& group, const Result<void>& result) {
  if (result) return "no failure";
  const auto again = group.barrier();
  if (again || again.error() != result.error()) return "the failure does not stick";
  return std::string(to_string(result.error().code)) + ": " + result.error().message;
}

void require_failure(const RankOutcome& outcome, std::string_view code,
                     const std::vector<std::string>& words) {
  INFO(outcome.text);
  REQUIRE(outcome.ended);
  REQUIRE_THAT(outcome.text, Catch::StartsWith(std::string(code) + ": "));
  for (const std::string& word : words) REQUIRE_THAT(outcome.text, Catch::Contains(word));
}

using Operation = std::function<Result<void>(ProcessGroup&)>;

struct Disagreement {
  Operation majority;
  Operation rank_1;
  std::vector<std::string> words;
};

}  // namespace

TEST_CASE("ranks that disagree on the operation all learn which rank called what") {
  const std::vector<Disagreement> cases = {
      {[](ProcessGroup& g) { return all_reduce(g, 100); },
       [](ProcessGroup& g) { return g.barrier(); },
       {"rank 0 called all_reduce(F32 x 100, sum)", "rank 1 called barrier()"}},
      {[](ProcessGroup& g) { return all_reduce(g, 100); },
       [](ProcessGroup& g) { return all_reduce(g, 101); },
       {"rank 0 called all_reduce(F32 x 100, sum)", "rank 1 called all_reduce(F32 x 101, sum)"}},
      {[](ProcessGroup& g) { return all_reduce(g, 1000000); },
       [](ProcessGroup& g) { return all_reduce(g, 10); },
       {"F32 x 1000000", "F32 x 10,"}},
      {[](ProcessGroup& g) { return all_reduce(g, 1000000); },
       [](ProcessGroup& g) {
         std::vector<double> data(1000000);
         return g.all_reduce({data.data(), data.size(), DType::kFloat64});
       },
       {"F32 x 1000000", "F64 x 1000000"}},
      {[](ProcessGroup& g) {
         float x = 0;
         return g.broadcast({&x, 1, DType::kFloat32}, 0);
       },
       [](ProcessGroup& g) {
         float x = 0;
         return g.broadcast({&x, 1, DType::kFloat32}, 2);
       },
       {"rank 0 called broadcast(F32 x 1, root 0)", "rank 1 called broadcast(F32 x 1, root 2)"}},
  };
  for (const Shape& shape : kShapes) {
    if (shape.backend == Backend::kAuto) continue;  // two levels compare within and between hosts; see below
    for (const Disagreement& disagreement : cases) {
      INFO(shape.name << ": " << disagreement.words[0]);
      const auto outcomes = run_world({.world_size = 3, .backend = shape.backend}, [&](ProcessGroup& group) {
        if (const auto before = all_reduce(group, 10); !before) return before.error().message;
        return failure_text(group,
                            group.rank() == 1 ? disagreement.rank_1(group) : disagreement.majority(group));
      });
      for (const RankOutcome& outcome : outcomes) {
        require_failure(outcome, "Mismatch", disagreement.words);
        REQUIRE_THAT(outcome.text, Catch::Contains("operation #1"));
      }
    }
  }
}

TEST_CASE("two hosts: a disagreement within a host reaches every rank") {
  const auto outcomes = run_world({.world_size = 3, .host_ids = {"a", "a", "b"}}, [&](ProcessGroup& group) {
    return failure_text(group, group.rank() == 1 ? group.barrier() : all_reduce(group, 100));
  });
  require_failure(outcomes[0], "Mismatch", {"rank 0 called all_reduce", "rank 1 called barrier"});
  require_failure(outcomes[1], "Mismatch", {"rank 0 called all_reduce", "rank 1 called barrier"});
  require_failure(outcomes[2], "Mismatch", {"rank 0 called all_reduce", "rank 1 called barrier"});
}

TEST_CASE("a rank that is killed is named by all others") {
  for (const Shape& shape : kShapes)
    for (const std::size_t count : {std::size_t{10}, std::size_t{1000000}}) {
      INFO(shape.name << ", " << count);
      const auto outcomes =
          run_world({.world_size = 3, .backend = shape.backend, .host_ids = shape.host_ids, .stuck_rank = 1},
                    [&](ProcessGroup& group) {
                      for (int i = 0; i < 20; ++i)
                        if (const auto done = all_reduce(group, count); !done)
                          return "too early: " + done.error().message;
                      if (group.rank() == 1) ::raise(SIGKILL);
                      return failure_text(group, all_reduce(group, count));
                    });
      require_failure(outcomes[0], "PeerGone", {"rank 1"});
      require_failure(outcomes[2], "PeerGone", {"rank 1"});
      REQUIRE(WIFSIGNALED(outcomes[1].status));
    }
}

TEST_CASE("a rank that is killed in the middle of large operations breaks the others' call") {
  for (const Shape& shape : kShapes) {
    INFO(shape.name);
    const auto outcomes = run_world(
        {.world_size = 3, .backend = shape.backend, .host_ids = shape.host_ids, .stuck_rank = 1},
        [&](ProcessGroup& group) {
          std::vector<float> data(2000000, 0.0f);
          // A timer, so that death comes at any point of an operation.
          if (group.rank() == 1) ::alarm(1);
          while (true) {
            const auto done = group.all_reduce({data.data(), data.size(), DType::kFloat32}, ReduceOp::kAvg);
            if (!done) return failure_text(group, done);
          }
        });
    require_failure(outcomes[0], "PeerGone", {"rank 1"});
    require_failure(outcomes[2], "PeerGone", {"rank 1"});
  }
}

TEST_CASE("a rank that is stopped is named when the timeout has passed") {
  for (const Shape& shape : kShapes) {
    INFO(shape.name);
    const auto outcomes = run_world({.world_size = 3,
                                     .backend = shape.backend,
                                     .host_ids = shape.host_ids,
                                     .timeout = 4s,
                                     .stuck_rank = 1},
                                    [&](ProcessGroup& group) {
                                      if (const auto done = all_reduce(group, 10); !done)
                                        return done.error().message;
                                      if (group.rank() == 1) ::raise(SIGSTOP);
                                      return failure_text(group, all_reduce(group, 10));
                                    });
    require_failure(outcomes[0], "Timeout", {"timed out waiting for rank 1"});
    require_failure(outcomes[2], "Timeout", {"timed out waiting for rank"});
  }
}

TEST_CASE("a rank that destroys its group is no longer waited for") {
  for (const Shape& shape : kShapes) {
    INFO(shape.name);
    const auto outcomes = run_world({.world_size = 3, .backend = shape.backend, .host_ids = shape.host_ids},
                                    [&](ProcessGroup& group) -> std::string {
                                      if (const auto done = group.barrier(); !done)
                                        return done.error().message;
                                      if (group.rank() == 1) return "left";
                                      return failure_text(group, all_reduce(group, 100));
                                    });
    require_failure(outcomes[0], "PeerGone", {"rank 1"});
    require_failure(outcomes[2], "PeerGone", {"rank 1"});
  }
}

TEST_CASE("a started all_reduce that can never end does not hold up the destructor") {
  for (const Shape& shape : kShapes) {
    INFO(shape.name);
    const auto outcomes = run_world(
        {.world_size = 3, .backend = shape.backend, .host_ids = shape.host_ids},
        [&](ProcessGroup& group) -> std::string {
          if (group.rank() == 1) return failure_text(group, group.barrier());
          static std::vector<float> data(1000, 1.0f);  // outlives the group: nobody waits for the work
          auto work = group.start_all_reduce({data.data(), data.size(), DType::kFloat32}, ReduceOp::kSum);
          if (!work) return work.error().message;
          const auto done = (*work)->wait();
          return failure_text(group, done);
        });
    for (const RankOutcome& outcome : outcomes) REQUIRE(outcome.ended);
    require_failure(outcomes[0], "Mismatch", {});
  }
}

TEST_CASE("ranks that do not come are named") {
  const TemporaryDirectory directory;
  for (const Backend backend : {Backend::kAuto, Backend::kTcp}) {
    const auto outcomes = run_ranks({.world_size = 1}, [&](int rank) -> std::string {
      auto store = open_file_store(directory.file(backend == Backend::kTcp ? "tcp" : "auto"));
      if (!store) return store.error().message;
      const auto group = groups::make_cpu_group(
          {.backend = backend, .rank = rank, .world_size = 3, .timeout = 300ms, .host_id = "h"}, **store);
      return group ? "made" : std::string(to_string(group.error().code)) + ": " + group.error().message;
    });
    require_failure(outcomes[0], "Timeout", {"ranks 1 and 2", "2 of 3 ranks did not come"});
  }
}

TEST_CASE("an argument error is found before anything is sent and leaves the group usable") {
  require_all_well(run_world({.world_size = 2}, [](ProcessGroup& group) -> std::string {
    std::uint8_t bytes[4] = {};
    const auto refused = group.all_reduce({bytes, 4, DType::kUInt8});
    if (refused || refused.error().code != ErrorCode::kInvalidArgument) return "U8 was not refused";
    std::int32_t numbers[4] = {};
    if (group.all_reduce({numbers, 4, DType::kInt32}, ReduceOp::kAvg))
      return "an integer average was not refused";
    if (group.broadcast({numbers, 4, DType::kInt32}, 2)) return "root 2 of 2 was not refused";
    if (group.all_gather(ConstBuffer(numbers, 2, DType::kInt32), Buffer{numbers, 3, DType::kInt32}))
      return "an output of the wrong size was not refused";
    const auto done = group.barrier();
    return done ? "" : done.error().message;
  }));
}

TEST_CASE("killing every rank leaves nothing in /dev/shm") {
  const NamedSegments segments;
  const auto outcomes =
      run_world({.world_size = 3, .make_segment = segments.maker()}, [&](ProcessGroup& group) {
        (void)group.allocate(1 << 20);
        (void)group.barrier();
        ::raise(SIGKILL);
        return std::string();
      });
  for (const RankOutcome& outcome : outcomes) REQUIRE(WIFSIGNALED(outcome.status));
  const auto names = segments.names();
  REQUIRE(names.size() >= 2);  // the group's own, and what was allocated
  for (const std::string& name : names) {
    CAPTURE(name);
    REQUIRE(name.starts_with("/dev/shm/muster-"));
    REQUIRE_FALSE(std::filesystem::exists(name));
  }
}
