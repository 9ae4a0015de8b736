// SPDX-License-Identifier: Apache-2.0
// What the other ranks learn when one of them disagrees, dies, stops or leaves. Real processes and signals.
#include <csignal>
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

/// "<code>: <text>" of the failure, and that it sticks and status() says it.
std::string failure_text(ProcessGroup& group, const Result<void>& result) {
  if (result) return "no failure";
  const auto again = group.barrier();
  if (again || again.error() != result.error()) return "the failure does not stick";
  if (const auto now = group.status(); now || now.error() != result.error())
    return "status() does not say it";
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

TEST_CASE("two ranks whose send and recv do not fit both learn who called what") {
  const auto send = [](int to, std::size_t count) -> Operation {
    return [=](ProcessGroup& group) {
      const std::vector<float> data(count);
      return group.send({data.data(), count, DType::kFloat32}, to);
    };
  };
  const auto recv = [](int from, std::size_t count, DType dtype = DType::kFloat32) -> Operation {
    return [=](ProcessGroup& group) {
      std::vector<double> data(count);
      return group.recv({data.data(), count, dtype}, from);
    };
  };
  struct Pair {
    Operation rank_0, rank_1;
    std::vector<std::string> words;
  };
  const std::vector<Pair> cases = {
      {send(1, 100),
       recv(0, 99),
       {"rank 0 called send(F32 x 100, to rank 1)", "recv(F32 x 99, from rank 0)"}},
      {send(1, 900000), recv(0, 9), {"send(F32 x 900000, to rank 1)", "recv(F32 x 9, from rank 0)"}},
      {recv(1, 8), send(0, 800000), {"recv(F32 x 8, from rank 1)", "rank 1 called send(F32 x 800000"}},
      {send(1, 4), recv(0, 4, DType::kFloat64), {"send(F32 x 4, to rank 1)", "recv(F64 x 4, from rank 0)"}},
      {send(1, 4), send(0, 4), {"rank 0 called send(F32 x 4, to", "rank 1 called send(F32 x 4, to"}},
      {recv(1, 4), recv(0, 4), {"rank 0 called recv(F32 x 4", "rank 1 called recv(F32 x 4"}},
      {send(1, 50000),
       [](ProcessGroup& g) { return g.barrier(); },
       {"rank 0 called send(F32 x 50000, to rank 1)", "rank 1 called barrier()"}},
      {[](ProcessGroup& g) { return all_reduce(g, 100000); },
       recv(0, 5),
       {"rank 0 called all_reduce(F32 x 100000, sum)", "rank 1 called recv(F32 x 5, from rank 0)"}},
  };
  for (const Shape& shape : kShapes) {
    // Without the third rank, whose timeout would come first, or with it on a host of its own.
    const int world_size = shape.host_ids.empty() ? 2 : 3;
    for (const Pair& pair : cases) {
      INFO(shape.name << ": " << pair.words[0] << ", " << pair.words[1]);
      const auto outcomes =
          run_world({.world_size = world_size, .backend = shape.backend, .host_ids = shape.host_ids},
                    [&](ProcessGroup& group) -> std::string {
                      if (const auto before = all_reduce(group, 10); !before) return before.error().message;
                      if (group.rank() == 2) return "";
                      return failure_text(group, (group.rank() == 0 ? pair.rank_0 : pair.rank_1)(group));
                    });
      require_failure(outcomes[0], "Mismatch", pair.words);
      require_failure(outcomes[1], "Mismatch", pair.words);
    }
  }
}

TEST_CASE("ranks that disagree on the root of a gather learn who called what") {
  for (const Shape& shape : kShapes) {
    INFO(shape.name);
    const auto outcomes = run_world(
        {.world_size = 2, .backend = shape.backend == Backend::kAuto ? Backend::kShm : shape.backend},
        [](ProcessGroup& group) {
          float in = 1;
          float out[2] = {};
          return failure_text(
              group, group.gather({&in, 1, DType::kFloat32}, {out, 2, DType::kFloat32}, group.rank()));
        });
    for (const RankOutcome& outcome : outcomes)
      require_failure(
          outcome, "Mismatch",
          {"rank 0 called recv(F32 x 1, from rank 1)", "rank 1 called recv(F32 x 1, from rank 0)"});
  }
}

TEST_CASE("two ranks transfer data while a third is stopped") {
  for (const Shape& shape : kShapes) {
    INFO(shape.name);
    const auto outcomes = run_world(
        {.world_size = 3, .backend = shape.backend, .host_ids = shape.host_ids, .stuck_rank = 1},
        [](ProcessGroup& group) -> std::string {
          if (const auto done = group.barrier(); !done) return done.error().message;
          if (group.rank() == 1) ::raise(SIGSTOP);
          for (const std::size_t count : {std::size_t{0}, std::size_t{10}, std::size_t{1000000}}) {
            std::vector<float> data(count, group.rank() == 0 ? 7.0F : 0.0F);
            const Buffer buffer{data.data(), count, DType::kFloat32};
            if (const auto done = group.rank() == 0 ? group.send(buffer, 2) : group.recv(buffer, 0); !done)
              return done.error().message;
            if (std::count(data.begin(), data.end(), 7.0F) != static_cast<std::ptrdiff_t>(count))
              return "other data";
          }
          return "";
        });
    for (const std::size_t rank : {0, 2}) {
      INFO(outcomes[rank].text);
      REQUIRE(outcomes[rank].ended);
      REQUIRE(outcomes[rank].text.empty());
    }
  }
}

TEST_CASE("a rank that is killed, leaves or is stopped is named by the one that receives from it") {
  for (const Shape& shape : kShapes)
    for (const int how : {SIGKILL, SIGSTOP, 0}) {
      INFO(shape.name << ", " << how);
      const auto outcomes =
          run_world({.world_size = 3,
                     .backend = shape.backend,
                     .host_ids = shape.host_ids,
                     .timeout = how == SIGSTOP ? 2s : 40s,
                     .stuck_rank = 1},
                    [&](ProcessGroup& group) -> std::string {
                      if (const auto done = group.barrier(); !done) return done.error().message;
                      if (group.rank() == 2) return "";
                      if (group.rank() == 1) return how != 0 ? ::raise(how), "" : "";
                      std::vector<float> data(1000000);
                      return failure_text(group, group.recv({data.data(), data.size(), DType::kFloat32}, 1));
                    });
      require_failure(outcomes[0], how == SIGSTOP ? "Timeout" : "PeerGone",
                      {"rank 1", "recv(F32 x 1000000, from rank 1)"});
    }
}

TEST_CASE("a sender that is killed in the middle of data breaks the receiver's call, and the reverse") {
  for (const Shape& shape : kShapes)
    for (const bool sender_dies : {true, false}) {
      INFO(shape.name << ", " << sender_dies);
      const auto outcomes =
          run_world({.world_size = 3, .backend = shape.backend, .host_ids = shape.host_ids, .stuck_rank = 1},
                    [&](ProcessGroup& group) -> std::string {
                      if (group.rank() == 2)
                        return group.recv({nullptr, 0, DType::kFloat32}, 0) ? "" : "broken";
                      std::vector<float> data(2000000);
                      const Buffer buffer{data.data(), data.size(), DType::kFloat32};
                      if (group.rank() == 1) ::alarm(1);
                      while (true) {
                        const bool sends = (group.rank() == 1) == sender_dies;
                        const auto done = sends ? group.send(buffer, 1 - group.rank())
                                                : group.recv(buffer, 1 - group.rank());
                        if (!done) return failure_text(group, done);
                      }
                    });
      require_failure(outcomes[0], "PeerGone", {"rank 1"});
    }
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

TEST_CASE("a failure within a host of several has the names of the whole group") {
  const auto outcomes = run_world({.world_size = 5, .host_ids = {"a", "a", "b", "b", "b"}, .stuck_rank = 4},
                                  [&](ProcessGroup& group) -> std::string {
                                    if (const auto done = all_reduce(group, 10); !done)
                                      return done.error().message;
                                    if (group.rank() == 4) ::raise(SIGKILL);
                                    return failure_text(group, all_reduce(group, 10));
                                  });
  for (const int rank : {2, 3}) {
    require_failure(outcomes[static_cast<std::size_t>(rank)], "PeerGone", {"#1 on rank", "rank 4 (pid"});
    for (const char* const other : {"on rank 0", "on rank 1", "#2", "#3"})
      REQUIRE_THAT(outcomes[static_cast<std::size_t>(rank)].text, !Catch::Contains(other));
  }
}

TEST_CASE("a rank that comes when the others have given up fails, too, and touches nothing of theirs") {
  const std::size_t count = GENERATE(std::size_t{0}, std::size_t{10}, std::size_t{100'000});
  CAPTURE(count);
  int given_up[2];
  REQUIRE(::pipe(given_up) == 0);
  const auto outcomes = run_world(
      {.world_size = 2, .backend = Backend::kShm, .timeout = 1s}, [&](ProcessGroup& group) -> std::string {
        const auto memory = group.allocate(std::max<std::size_t>(count, 1) * sizeof(float));
        if (!memory) return memory.error().message;
        auto* const values = static_cast<float*>(*memory);
        std::fill_n(values, count, static_cast<float>(group.rank()));
        if (const auto met = group.barrier(); !met) return met.error().message;
        char byte = 'x';
        if (group.rank() == 1 && ::read(given_up[0], &byte, 1) != 1) return "no byte";
        const auto done = count == 0 ? group.barrier() : group.all_reduce({values, count, DType::kFloat32});
        if (group.rank() == 0 && ::write(given_up[1], &byte, 1) != 1) return "no room";
        if (done) return "it passed";
        // The other rank is done with the memory, too, when it has gone.
        return done.error().code == ErrorCode::kTimeout ? "" : done.error().message;
      });
  require_all_well(outcomes);
  for (const int fd : given_up) ::close(fd);
}

TEST_CASE("a forked child that destroys its copy of a group is not its rank") {
  const bool started = GENERATE(false, true);  // an all_reduce that the others have not come to
  for (const Shape& shape : kShapes) {
    CAPTURE(started, shape.name);
    require_all_well(
        run_world({.world_size = 3, .backend = shape.backend, .host_ids = shape.host_ids},
                  [&](ProcessGroup& group) -> std::string {
                    float value = 1;
                    std::unique_ptr<Work> work;
                    if (started && group.rank() == 0) {
                      auto begun = group.start_all_reduce({&value, 1, DType::kFloat32}, ReduceOp::kSum);
                      if (!begun) return begun.error().message;
                      work = *std::move(begun);
                    }
                    const pid_t child = group.rank() == 0 ? ::fork() : -1;
                    if (child == 0) {
                      group.~ProcessGroup();
                      ::_exit(0);
                    }
                    if (child > 0) ::waitpid(child, nullptr, 0);
                    if (started && group.rank() != 0)
                      if (const auto met = group.all_reduce({&value, 1, DType::kFloat32}); !met)
                        return met.error().message;
                    if (work != nullptr)
                      if (const auto met = work->wait(); !met) return met.error().message;
                    if (const auto met = group.barrier(); !met) return met.error().message;
                    return group.status() ? "" : "broken";
                  }));
  }
}

TEST_CASE("a group of one rank refuses the types that larger ones refuse") {
  const auto group = make_single_group();
  std::vector<std::int32_t> values(4);
  for (const auto& [buffer, op] : {std::pair{Buffer{values.data(), 4, DType::kUInt8}, ReduceOp::kSum},
                                   std::pair{Buffer{values.data(), 4, DType::kInt32}, ReduceOp::kAvg}}) {
    REQUIRE(group->all_reduce(buffer, op).error().code == ErrorCode::kInvalidArgument);
    REQUIRE(group->start_all_reduce(buffer, op).error().code == ErrorCode::kInvalidArgument);
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
    if (group.reduce({numbers, 4, DType::kInt32}, -1)) return "root -1 was not refused";
    if (group.send({numbers, 4, DType::kInt32}, group.rank())) return "a send to itself was not refused";
    if (group.recv({numbers, 4, DType::kInt32}, 2)) return "a recv from rank 2 of 2 was not refused";
    if (group.rank() == 0 && group.gather({numbers, 2, DType::kInt32}, {numbers, 2, DType::kInt32}, 0))
      return "a gather's output of the wrong size was not refused";
    if (group.rank() == 0 && group.scatter({nullptr, 4, DType::kInt32}, {numbers, 2, DType::kInt32}, 0))
      return "a scatter from nowhere was not refused";
    if (group.gather({nullptr, 2, DType::kInt32}, {numbers, 4, DType::kInt32}, 0))
      return "a gather of nothing was not refused";
    if (group.all_gather(ConstBuffer(numbers, 2, DType::kInt32), Buffer{numbers, 3, DType::kInt32}))
      return "an output of the wrong size was not refused";
    const auto done = group.barrier();
    return done ? "" : done.error().message;
  }));
}
