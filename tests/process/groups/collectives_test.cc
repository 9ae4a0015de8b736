// SPDX-License-Identifier: Apache-2.0
// Every collective between real processes, over shared memory, TCP and both in two levels.
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <unistd.h>

#include <muster/file_store.h>

#include "tests/support/catch.h"
#include "tests/support/group_ops.h"
#include "tests/support/group_world.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"

using namespace muster;
using namespace muster::testing;

namespace {

using muster::test::kSanitized;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// A sanitizer makes every element ten times as expensive; more of them take no other path through the code.
constexpr std::size_t kLargest = (kSanitized ? 3 : 25) * kMiB;
constexpr int kRandomOps = kSanitized ? 40 : 150;
const std::vector<int> kWorlds = kSanitized ? std::vector{2, 3, 5} : std::vector{2, 3, 4, 5, 8};

struct Shape {
  const char* name;
  Backend backend;
  std::vector<std::string> host_ids = {};
  std::string_view made;  // what backend() says
};

const Shape kShm{"shm", Backend::kShm, {}, "shm"};
const Shape kTcp{"tcp", Backend::kTcp, {}, "tcp"};
const Shape kTwoHosts{"two hosts", Backend::kAuto, {"a", "b", "a", "b", "b"}, "hierarchical"};

WorldOptions world_of(const Shape& shape, int world_size) {
  return {.world_size = world_size, .backend = shape.backend, .host_ids = shape.host_ids};
}

std::string run_all(ProcessGroup& group, const std::vector<OpSpec>& specs, std::size_t max_bytes) {
  OpRunner runner(group, max_bytes);
  for (const OpSpec& spec : specs)
    if (auto wrong = runner.run(spec)) return *wrong;
  return "";
}

std::vector<OpSpec> every_call_dtype_and_reduction(int world_size) {
  std::vector<OpSpec> specs;
  for (const Call call : {Call::kAllReduce, Call::kStartAllReduce, Call::kReduceScatter, Call::kReduce})
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt32, DType::kInt64})
      for (const ReduceOp reduce :
           {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
        if (reduce == ReduceOp::kAvg && (dtype == DType::kInt32 || dtype == DType::kInt64)) continue;
        for (const Where where : {Where::kPrivate, Where::kRegistered})
          for (const std::size_t count : {std::size_t{1009}, std::size_t{20011}})
            specs.push_back({.call = call,
                             .dtype = dtype,
                             .reduce = reduce,
                             .count = count,
                             .root = world_size / 2,
                             .where = where});
      }
  for (const Call call :
       {Call::kBroadcast, Call::kAllGather, Call::kGather, Call::kScatter, Call::kSendAndRecv})
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kInt64, DType::kUInt8})
      for (const std::size_t count : {std::size_t{0}, std::size_t{1009}, std::size_t{20013}})
        specs.push_back({.call = call, .dtype = dtype, .count = count, .root = world_size - 1});
  specs.push_back({.call = Call::kBarrier});
  return specs;
}

std::vector<OpSpec> every_size() {
  std::vector<OpSpec> specs;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{4}, std::size_t{4096}, std::size_t{4100},
                                  std::size_t{16384}, kMiB, kMiB + 4, kLargest})
    for (const Where where : {Where::kPrivate, Where::kRegistered, Where::kMixed})
      for (const Call call : {Call::kAllReduce, Call::kReduce})
        specs.push_back({.call = call, .count = bytes / 4, .root = 1, .where = where});
  for (const std::size_t count : {kMiB / 16, kMiB / 4 + 1, kLargest / 4})
    specs.push_back({.call = Call::kSendAndRecv, .count = count});
  return specs;
}

void check_calls(const Shape& shape, const std::vector<int>& worlds) {
  for (const int world_size : worlds) {
    INFO(shape.name << ", " << world_size << " ranks");
    const auto specs = every_call_dtype_and_reduction(world_size);
    require_all_well(run_world(world_of(shape, world_size), [&](ProcessGroup& group) -> std::string {
      if (group.backend() != shape.made) return "made " + std::string(group.backend());
      return run_all(group, specs, 8 * 20011 * static_cast<std::size_t>(world_size));
    }));
  }
}

void check_random(const Shape& shape, const std::vector<int>& worlds) {
  for (const int world_size : worlds) {
    const unsigned seed = muster::test::seed();
    INFO(shape.name << ", " << world_size << " ranks, seed " << seed);
    require_all_well(run_world(world_of(shape, world_size), [&](ProcessGroup& group) -> std::string {
      std::mt19937 random(seed);
      std::vector<OpSpec> specs;
      for (int i = 0; i < kRandomOps; ++i) specs.push_back(random_spec(random, world_size, 2 * kMiB));
      return run_all(group, specs, 2 * kMiB);
    }));
  }
}

/// A number any rank can compute for any other: nothing about it is exactly representable.
float awkward(int rank, std::size_t i) {
  return std::sin(static_cast<float>(i) * 0.37f + static_cast<float>(rank) * 1.7f) *
         std::exp2(static_cast<float>((i + static_cast<std::size_t>(rank) * 5) % 19));
}

/// What `input` of the ranks from `first` on makes as a balanced binary tree.
template <class Input>
float tree_sum(const Input& input, int first, int count) {
  if (count == 1) return input(first);
  const int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
  return tree_sum(input, first, left) + tree_sum(input, first + left, count - left);
}

void check_tree_sums(const Shape& shape, int world_size) {
  INFO(shape.name << ", " << world_size << " ranks");
  require_all_well(run_world(world_of(shape, world_size), [&](ProcessGroup& group) -> std::string {
    if (!group.sums_by_tree()) return "says that it does not sum by tree";
    for (const std::size_t count : {std::size_t{1000}, std::size_t{300007}})
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        // volatile: rounded before it is added, whatever the compiler would fuse.
        const float scale = op == ReduceOp::kAvg ? 1.0F / static_cast<float>(world_size) : 1.0F;
        const auto input = [&](int rank, std::size_t i) {
          const volatile float product = awkward(rank, i) * scale;
          return product;
        };
        std::vector<float> data(count);
        for (std::size_t i = 0; i < count; ++i) data[i] = awkward(group.rank(), i);
        if (const auto done = group.all_reduce({data.data(), count, DType::kFloat32}, op); !done)
          return done.error().message;
        for (std::size_t i = 0; i < count; ++i) {
          const float sum = tree_sum([&](int rank) { return input(rank, i); }, 0, world_size);
          if (std::memcmp(&sum, &data[i], sizeof sum) != 0) return "element " + std::to_string(i);
        }
      }
    return "";
  }));
}

void check_equal_bits(const Shape& shape, int world_size) {
  INFO(shape.name << ", " << world_size << " ranks");
  require_all_well(run_world(world_of(shape, world_size), [&](ProcessGroup& group) -> std::string {
    for (const std::size_t count : {std::size_t{1000}, std::size_t{100003}}) {
      std::vector<float> data(count);
      for (std::size_t i = 0; i < count; ++i) data[i] = awkward(group.rank(), i);
      if (const auto done = group.all_reduce({data.data(), count, DType::kFloat32}, ReduceOp::kAvg); !done)
        return done.error().message;
      std::vector<float> all(count * static_cast<std::size_t>(world_size));
      if (const auto done = group.all_gather(ConstBuffer(data.data(), count, DType::kFloat32),
                                             Buffer{all.data(), all.size(), DType::kFloat32});
          !done)
        return done.error().message;
      for (int rank = 0; rank < world_size; ++rank)
        if (std::memcmp(all.data() + count * static_cast<std::size_t>(rank), data.data(), count * 4) != 0)
          return "rank " + std::to_string(rank) + " has other bits";
    }
    return "";
  }));
}

void check_overlapping(const Shape& shape, int world_size) {
  INFO(shape.name << ", " << world_size << " ranks");
  require_all_well(run_world(world_of(shape, world_size), [&](ProcessGroup& group) -> std::string {
    OpRunner runner(group, 4 * kMiB);
    for (const Where where : {Where::kPrivate, Where::kRegistered}) {
      std::vector<OpSpec> specs;
      for (const std::size_t count :
           {std::size_t{10}, std::size_t{100000}, std::size_t{0}, std::size_t{5000}, std::size_t{262144}})
        specs.push_back({.call = Call::kStartAllReduce, .count = count, .where = where});
      for (int round = 0; round < (kSanitized ? 2 : 5); ++round)
        if (auto wrong = runner.run_overlapping(specs)) return *wrong;
    }
    return "";
  }));
}

std::size_t open_descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

}  // namespace

TEST_CASE("shared memory: every collective, element type and reduction gives the exact result") {
  check_calls(kShm, kWorlds);
}
TEST_CASE("TCP: every collective, element type and reduction gives the exact result") {
  check_calls(kTcp, kWorlds);
}
TEST_CASE("two hosts: every collective, element type and reduction gives the exact result") {
  check_calls(kTwoHosts, {5});
}

TEST_CASE("shared memory: sizes from nothing to 25 MiB, registered or not") {
  for (const int world_size : {2, 3})
    require_all_well(run_world(world_of(kShm, world_size),
                               [](ProcessGroup& group) { return run_all(group, every_size(), kLargest); }));
}
TEST_CASE("TCP: sizes from nothing to 25 MiB") {
  for (const int world_size : {2, 3})
    require_all_well(run_world(world_of(kTcp, world_size),
                               [](ProcessGroup& group) { return run_all(group, every_size(), kLargest); }));
}

TEST_CASE("shared memory: random sequences of operations") {
  check_random(kShm, kWorlds);
}
TEST_CASE("TCP: random sequences of operations") {
  check_random(kTcp, kWorlds);
}
TEST_CASE("two hosts: random sequences of operations") {
  check_random(kTwoHosts, {5});
}

// Who met the others last may be in the transfer before the peer has come back from the barrier.
TEST_CASE("shared memory: a transfer right after a barrier, 200,000 times") {
  require_all_well(run_world(world_of(kShm, 2), [](ProcessGroup& group) -> std::string {
    float value = 0;
    const Buffer buffer{&value, 1, DType::kFloat32};
    for (int i = 0; i < (kSanitized ? 10'000 : 200'000); ++i) {
      if (const auto met = group.barrier(); !met) return met.error().message;
      const auto done = group.rank() == 0 ? group.recv(buffer, 1) : group.send(buffer, 0);
      if (!done) return done.error().message;
    }
    return "";
  }));
}

TEST_CASE(
    "sums and averages are taken by one tree over the ranks, bit for bit, by shared memory and TCP alike") {
  for (const int world_size : {3, 4, 6, 7}) {  // 1/3, 1/6 and 1/7 are no floats
    check_tree_sums(kShm, world_size);
    check_tree_sums(kTcp, world_size);
  }
  check_tree_sums({"hosts of two", Backend::kAuto, {"a", "a", "b", "b", "c", "c", "d", "d"}, "hierarchical"},
                  8);
}

TEST_CASE("hosts with one rank and with several allocate together, and no rank is given what none can have") {
  const WorldOptions options{.world_size = 3, .host_ids = {"a", "a", "b"}};
  require_all_well(run_world(options, [&](ProcessGroup& group) -> std::string {
    if (const auto none = group.allocate(SIZE_MAX); none || none.error().code != ErrorCode::kExhausted)
      return "has SIZE_MAX bytes";
    return "";
  }));
  require_all_well(run_world(options, [&](ProcessGroup& group) -> std::string {
    for (int round = 0; round < 3; ++round) {
      const auto memory = group.allocate(4096);
      if (!memory) return memory.error().message;
      if (const auto done = group.all_reduce({*memory, 1024, DType::kFloat32}); !done)
        return done.error().message;
    }
    return "";
  }));
}

TEST_CASE("what ranks of different hosts call is compared, too, and every rank names both") {
  const WorldOptions options{.world_size = 4, .host_ids = {"a", "a", "b", "b"}};
  const auto check = [&](const std::string& of_a, const std::string& of_b, const auto& call) {
    INFO(of_a << " and " << of_b);
    require_all_well(run_world(options, [&](ProcessGroup& group) -> std::string {
      std::vector<float> data(64, 4.0F);
      const Result<void> done =
          call(group, group.rank() < 2, Buffer{data.data(), data.size(), DType::kFloat32});
      if (done) return "says that all is well";
      const std::string& text = done.error().message;
      if (done.error().code != ErrorCode::kMismatch || text.find(of_a) == std::string::npos ||
          text.find(of_b) == std::string::npos)
        return text;
      return "";
    }));
  };
  check("all_reduce(F32 x 64, sum)", "all_reduce(F32 x 64, avg)",
        [](ProcessGroup& group, bool a, Buffer data) {
          return group.all_reduce(data, a ? ReduceOp::kSum : ReduceOp::kAvg);
        });
  check("reduce(F32 x 64, sum, root 0)", "reduce(F32 x 64, sum, root 3)",
        [](ProcessGroup& group, bool a, Buffer data) { return group.reduce(data, a ? 0 : 3); });
  check("reduce(F32 x 64, sum, root 0)", "all_reduce(F32 x 64, sum)",
        [](ProcessGroup& group, bool a, Buffer data) {
          return a ? group.reduce(data, 0) : group.all_reduce(data);
        });
  check("allocate(4096 bytes)", "allocate(8192 bytes)", [](ProcessGroup& group, bool a, Buffer) {
    return group.allocate(a ? 4096 : 8192).map([](void*) {});
  });
}

TEST_CASE("hosts that have no equal parts of the tree say that they do not sum by it") {
  for (const std::vector<std::string>& hosts :
       {std::vector<std::string>{"a", "a", "a", "b"}, std::vector<std::string>{"a", "b", "a", "b"},
        std::vector<std::string>{"a", "a", "a", "b", "b", "b"}})
    require_all_well(run_world({.world_size = static_cast<int>(hosts.size()), .host_ids = hosts},
                               [&](ProcessGroup& group) -> std::string {
                                 return group.sums_by_tree() ? "says that it sums by tree" : "";
                               }));
}

TEST_CASE("an average has the same bits on every rank") {
  check_equal_bits(kShm, 3);
  check_equal_bits(kTcp, 3);
  check_equal_bits(kTwoHosts, 5);
}

TEST_CASE("started all_reduces overlap each other and keep their order with direct calls") {
  check_overlapping(kShm, 3);
  check_overlapping(kTcp, 3);
  check_overlapping(kTwoHosts, 5);
}

TEST_CASE("a group over one rank per host is flat TCP") {
  require_all_well(
      run_world({.world_size = 3, .host_ids = {"a", "b", "c"}}, [](ProcessGroup& group) -> std::string {
        return group.backend() == "tcp" ? "" : std::string(group.backend());
      }));
}

TEST_CASE("ranks that cannot share memory fall back to TCP together") {
  require_all_well(
      run_world({.world_size = 3,
                 .make_segment =
                     [](const groups::SegmentRequest& request, const groups::TextExchange& exchange) {
                       // Rank 2 asks for another size than the others, so it cannot take their segment.
                       groups::SegmentRequest wrong = request;
                       if (request.member == 2) wrong.size += 4096;
                       return groups::make_shared_segment(wrong, exchange);
                     }},
                [](ProcessGroup& group) -> std::string {
                  if (group.backend() != "tcp") return std::string(group.backend());
                  return run_all(group, {{.count = 100000}}, 4096);
                }));
}

TEST_CASE("a shared-memory group across hosts is refused on every rank") {
  const auto outcomes = run_world({.world_size = 2, .backend = Backend::kShm, .host_ids = {"a", "b"}},
                                  [](ProcessGroup&) { return "made"; });
  for (const auto& outcome : outcomes) REQUIRE_THAT(outcome.text, Catch::Contains("on 2 hosts"));
}

TEST_CASE("making and destroying groups leaves no descriptor and no memory behind") {
  const TemporaryDirectory directory;
  const auto outcomes = run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    const std::size_t before = open_descriptors();
    for (int round = 0; round < 6; ++round) {
      auto store = open_file_store(directory.file("store" + std::to_string(round)));
      if (!store) return store.error().message;
      auto group = groups::make_cpu_group({.backend = round % 2 == 0 ? Backend::kShm : Backend::kTcp,
                                           .rank = rank,
                                           .world_size = 2,
                                           .host_id = "h",
                                           .route_host = "127.0.0.1"},
                                          **store);
      if (!group) return group.error().message;
      OpRunner runner(**group, kMiB);
      if (auto wrong =
              runner.run({.call = Call::kStartAllReduce, .count = 100000, .where = Where::kRegistered}))
        return *wrong;
    }
    const std::size_t after = open_descriptors();
    return after == before ? "" : std::to_string(before) + " descriptors became " + std::to_string(after);
  });
  require_all_well(outcomes);
}

TEST_CASE("a group may be destroyed while another rank is still in its last barrier") {
  for (const Shape& shape : {kShm, kTcp}) {
    const TemporaryDirectory directory;
    require_all_well(run_ranks({.world_size = 4}, [&](int rank) -> std::string {
      for (int round = 0; round < 25; ++round) {
        auto store = open_file_store(directory.file(std::string(shape.name) + std::to_string(round)));
        if (!store) return store.error().message;
        auto group = groups::make_cpu_group({.backend = shape.backend,
                                             .rank = rank,
                                             .world_size = 4,
                                             .host_id = "h",
                                             .route_host = "127.0.0.1"},
                                            **store);
        if (!group) return group.error().message;
        if (const auto done = (*group)->barrier(); !done) return done.error().message;
      }
      return "";
    }));
  }
}
