// SPDX-License-Identifier: Apache-2.0
// The NCCL group's whole path between real processes: the fake NCCL (tests/support/fake_nccl.cc) on host
// streams.
#include "worker_runtime/groups/nccl/nccl_group.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <muster/file_store.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "tests/support/host_device.h"
#include "tests/support/ranks.h"

using namespace muster;
using namespace muster::testing;

namespace {

/// One rank's group on a file store, with the stream the "kernels" of the test run on.
struct World {
  const TemporaryDirectory* directory;
  int size;
  Millis timeout{20'000};
  std::string library = FAKE_NCCL;
  Millis captured_timeout{60'000};
};

/// Where it has to pass; until they have met the ranks need some of it, too.
constexpr Millis kShort{3000};

struct Member {
  std::unique_ptr<Store> store;
  std::shared_ptr<HostDevice> device = std::make_shared<HostDevice>();
  HostStream stream;
  std::unique_ptr<ProcessGroup> group;

  Result<void> join(const World& world, int rank) {
    MUSTER_TRY(store, open_file_store(world.directory->file("store")));
    nccl::GroupSettings settings;
    settings.rank = rank;
    settings.world_size = world.size;
    settings.timeout = world.timeout;
    settings.captured_timeout = world.captured_timeout;
    settings.library = world.library;
    MUSTER_TRY(group, nccl::make_group(*store, settings, device, &stream));
    return {};
  }
};

std::string text_of(const Error& error) {
  return std::string(to_string(error.code)) + ": " + error.message;
}

#define STEP(expression)                                                  \
  do {                                                                    \
    if (auto step_ = (expression); !step_) return text_of(step_.error()); \
  } while (false)
#define EXPECT(condition)                                                                       \
  do {                                                                                          \
    if (!(condition)) return std::string("line ") + std::to_string(__LINE__) + ": " #condition; \
  } while (false)

template <class T>
DType dtype_of();
template <>
DType dtype_of<float>() {
  return DType::kFloat32;
}
template <>
DType dtype_of<std::int64_t>() {
  return DType::kInt64;
}

/// Every collective with results that are exact in any order.
template <class T>
std::string all_collectives(Member& member, int rank, int size, std::size_t count) {
  const DType dtype = dtype_of<T>();
  const auto world = static_cast<std::size_t>(size);
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(i % 7 + static_cast<std::size_t>(rank));
  STEP(member.group->all_reduce({values.data(), count, dtype}, ReduceOp::kSum));
  member.stream.synchronize();
  for (std::size_t i = 0; i < count; ++i)
    EXPECT(values[i] == static_cast<T>(i % 7 * world + world * (world - 1) / 2));

  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(rank);
  STEP(member.group->all_reduce({values.data(), count, dtype}, ReduceOp::kMax));
  member.stream.synchronize();
  for (const T value : values) EXPECT(value == static_cast<T>(size - 1));

  for (T& value : values) value = static_cast<T>(rank + 10);
  STEP(member.group->broadcast({values.data(), count, dtype}, size - 1));
  member.stream.synchronize();
  for (const T value : values) EXPECT(value == static_cast<T>(size + 9));

  std::vector<T> mine(count, static_cast<T>(rank + 1)), gathered(count * world);
  STEP(member.group->all_gather({mine.data(), count, dtype}, {gathered.data(), gathered.size(), dtype}));
  member.stream.synchronize();
  for (std::size_t i = 0; i < gathered.size(); ++i) EXPECT(gathered[i] == static_cast<T>(i / count + 1));

  for (std::size_t i = 0; i < gathered.size(); ++i) gathered[i] = static_cast<T>(i / count);
  STEP(member.group->reduce_scatter({gathered.data(), gathered.size(), dtype}, {mine.data(), count, dtype},
                                    ReduceOp::kSum));
  member.stream.synchronize();
  for (const T value : mine) EXPECT(value == static_cast<T>(rank * size));

  for (T& value : values) value = static_cast<T>(rank);
  STEP(member.group->reduce({values.data(), count, dtype}, size - 1));
  member.stream.synchronize();
  for (const T value : values) EXPECT(rank != size - 1 || value == static_cast<T>(size * (size - 1) / 2));

  const bool is_root = rank == size - 1;
  for (T& value : mine) value = static_cast<T>(rank + 3);
  STEP(member.group->gather({mine.data(), count, dtype},
                            is_root ? Buffer{gathered.data(), gathered.size(), dtype} : Buffer{}, size - 1));
  STEP(member.group->scatter(is_root ? ConstBuffer{gathered.data(), gathered.size(), dtype} : ConstBuffer{},
                             {values.data(), count, dtype}, size - 1));
  member.stream.synchronize();
  for (std::size_t i = 0; is_root && i < gathered.size(); ++i)
    EXPECT(gathered[i] == static_cast<T>(i / count + 3));
  for (const T value : values) EXPECT(value == static_cast<T>(rank + 3));

  if (size == 1) return "";
  for (T& value : mine) value = static_cast<T>(rank);
  const auto send = [&] { return member.group->send({mine.data(), count, dtype}, (rank + 1) % size); };
  const auto recv = [&] {
    return member.group->recv({values.data(), count, dtype}, (rank + size - 1) % size);
  };
  STEP(rank % 2 == 0 ? send() : recv());
  STEP(rank % 2 == 0 ? recv() : send());
  member.stream.synchronize();
  for (const T value : values) EXPECT(value == static_cast<T>((rank + size - 1) % size));
  STEP(member.group->barrier());
  return "";
}

std::string log_of(const TemporaryDirectory& directory, int rank) {
  return read_file(directory.file("log" + std::to_string(rank))).value_or("");
}

void log_to(const TemporaryDirectory& directory, int rank) {
  ::setenv("MUSTER_FAKE_NCCL_LOG", directory.file("log" + std::to_string(rank)).c_str(), 1);
}

void require_all(const std::vector<RankOutcome>& outcomes) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    INFO("rank " << rank << ": " << outcomes[rank].text);
    CHECK(outcomes[rank].ended);
    CHECK(outcomes[rank].status == 0);
    CHECK(outcomes[rank].text.empty());
  }
}

}  // namespace

TEST_CASE("every NCCL collective is right on one to four ranks, also beyond one chunk") {
  for (int size = 1; size <= 4; ++size) {
    const TemporaryDirectory directory;
    require_all(run_ranks({.world_size = size}, [&](int rank) -> std::string {
      log_to(directory, rank);
      {
        Member member;
        STEP(member.join({&directory, size}, rank));
        EXPECT(member.group->rank() == rank && member.group->world_size() == size);
        EXPECT(member.group->backend() == "nccl" && member.group->device() == DeviceType::kCuda);
        for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{40000}}) {
          if (std::string text = all_collectives<float>(member, rank, size, count); !text.empty())
            return text;
          if (std::string text = all_collectives<std::int64_t>(member, rank, size, count); !text.empty())
            return text;
        }
      }
      EXPECT(log_of(directory, rank) == "finalize\ndestroy\n");
      return "";
    }));
  }
}

TEST_CASE("calls that NCCL leaves in progress are asked for until they are done") {
  const TemporaryDirectory directory;
  require_all(run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    ::setenv("MUSTER_FAKE_NCCL_IN_PROGRESS", rank == 0 ? "5" : "1", 1);
    Member member;
    STEP(member.join({&directory, 2}, rank));
    return all_collectives<float>(member, rank, 2, 1000);
  }));
}

TEST_CASE("a collective starts after the compute stream's work and the stream continues after the result") {
  const TemporaryDirectory directory;
  require_all(run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    Member member;
    STEP(member.join({&directory, 2}, rank));
    constexpr std::size_t kCount = 5000;
    std::vector<std::vector<float>> buckets(3, std::vector<float>(kCount, -1.0F));
    std::vector<float> sums(3, -1.0F);
    std::atomic<bool> go{false};
    // Nothing may run before `go`: whoever reads a bucket too early finds -1.
    member.stream.enqueue([&] {
      while (!go) std::this_thread::yield();
    });
    std::vector<std::unique_ptr<Work>> works;
    for (auto& bucket : buckets) {
      member.stream.enqueue([&bucket] { std::fill(bucket.begin(), bucket.end(), 2.0F); });
      auto work = member.group->start_all_reduce({bucket.data(), kCount, DType::kFloat32}, ReduceOp::kAvg);
      if (!work) return text_of(work.error());
      works.push_back(std::move(*work));
    }
    go = true;
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      STEP(works[i]->wait());
      member.stream.enqueue([&, i] { sums[i] = buckets[i][0] + buckets[i][kCount - 1]; });
    }
    member.stream.synchronize();
    for (const float sum : sums) EXPECT(sum == 4.0F);
    return "";
  }));
}

TEST_CASE(
    "an asynchronous error becomes a sticky kPeerGone that names rank, operation and number, and aborts") {
  const TemporaryDirectory directory;
  require_all(run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    log_to(directory, rank);
    ::setenv("MUSTER_FAKE_NCCL_ERROR_AT", "2", 1);
    {
      std::vector<float> values(10, 1.0F);  // outlives the group: a collective may be stuck on it
      Member member;
      STEP(member.join({&directory, 2}, rank));
      STEP(member.group->all_reduce({values.data(), 10, DType::kFloat32}));
      STEP(member.group->all_reduce({values.data(), 10, DType::kFloat32}));
      const auto first = member.group->barrier();
      EXPECT(!first && first.error().code == ErrorCode::kPeerGone);
      EXPECT(first.error().message.find("rank " + std::to_string(rank) + " of 2: all_reduce #2 of 10 F32") ==
             0);
      EXPECT(first.error().message.find("NCCL 2.28.9") != std::string::npos);
      EXPECT(first.error().message.find("connection closed by peer") != std::string::npos);
      const auto second = member.group->all_reduce({values.data(), 10, DType::kFloat32});
      EXPECT(!second && second.error() == first.error());
      const auto third = member.group->allocate(64);
      EXPECT(!third && third.error() == first.error());
    }
    EXPECT(log_of(directory, rank) == "abort\n");
    return "";
  }));
}

TEST_CASE("a collective that never finishes is a kTimeout on every rank and the communicators are aborted") {
  const TemporaryDirectory directory;
  require_all(run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    log_to(directory, rank);
    if (rank == 1) ::setenv("MUSTER_FAKE_NCCL_HANG_AT", "1", 1);
    {
      std::vector<float> values(10, 1.0F);  // outlives the group: a collective may be stuck on it
      Member member;
      STEP(member.join({&directory, 2, kShort}, rank));
      STEP(member.group->all_reduce({values.data(), 10, DType::kFloat32}));
      const auto failed = member.group->barrier();
      EXPECT(!failed);
      // The rank that times out first ends; the other then sees either its own deadline or the peer's end.
      EXPECT(failed.error().code == ErrorCode::kTimeout || failed.error().code == ErrorCode::kPeerGone);
      EXPECT(failed.error().message.find("all_reduce #1") != std::string::npos);
      if (rank == 1) EXPECT(failed.error().code == ErrorCode::kTimeout);
    }
    EXPECT(log_of(directory, rank) == "abort\n");
    return "";
  }));
}

TEST_CASE("a rank that dies is kPeerGone to the others") {
  const TemporaryDirectory directory;
  const auto outcomes = run_ranks({.world_size = 3}, [&](int rank) -> std::string {
    Member member;
    STEP(member.join({&directory, 3}, rank));
    STEP(member.group->barrier());
    if (rank == 2) ::_exit(9);
    const auto failed = member.group->barrier();
    EXPECT(!failed && failed.error().code == ErrorCode::kPeerGone);
    EXPECT(failed.error().message.find("barrier #2") != std::string::npos);
    if (failed.error().message.find("rank 2 has ended") == std::string::npos) return failed.error().message;
    STEP(member.store->set("failed/" + std::to_string(rank), ""));  // nobody's end is taken for the cause
    STEP(member.store->get("failed/" + std::to_string(1 - rank), Millis(20'000)));
    return "";
  });
  for (const int rank : {0, 1}) {
    INFO(outcomes[static_cast<std::size_t>(rank)].text);
    CHECK(outcomes[static_cast<std::size_t>(rank)].ended);
    CHECK(outcomes[static_cast<std::size_t>(rank)].text.empty());
  }
  CHECK(WEXITSTATUS(outcomes[2].status) == 9);
}

TEST_CASE("a rank that never joins is a kTimeout that names it") {
  const TemporaryDirectory directory;
  require_all(run_ranks({.world_size = 1}, [&](int rank) -> std::string {
    log_to(directory, rank);
    {
      Member member;
      const auto failed = member.join({&directory, 2, Millis(200)}, rank);
      EXPECT(!failed && failed.error().code == ErrorCode::kTimeout);
      EXPECT(failed.error().message.find("1 of 2 ranks did not come within") != std::string::npos);
      EXPECT(failed.error().message.find("rank 1") != std::string::npos);
    }
    EXPECT(log_of(directory, rank).empty());
    return "";
  }));
}

TEST_CASE("a communicator that does not come up is a kTimeout of the start, and what began is aborted") {
  const TemporaryDirectory directory;
  require_all(run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    log_to(directory, rank);
    ::setenv("MUSTER_FAKE_NCCL_INIT_HANG", "1", 1);
    {
      Member member;
      const auto failed = member.join({&directory, 2, Millis(2000)}, rank);
      EXPECT(!failed && failed.error().code == ErrorCode::kTimeout);
      const std::string start = "rank " + std::to_string(rank) + " of 2: start (NCCL 2.28.9): ";
      EXPECT(failed.error().message.find(start + "not finished after 2000 ms") == 0);
    }
    EXPECT(log_of(directory, rank) == "abort\n");
    return "";
  }));
}

TEST_CASE("an NCCL without its own allocator works") {
  const TemporaryDirectory directory;
  require_all(run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    log_to(directory, rank);
    ::setenv("MUSTER_FAKE_NCCL_ERROR_AT", "15", 1);
    {
      Member member;
      STEP(member.join({&directory, 2, Millis(20'000), FAKE_NCCL_OLD}, rank));
      if (std::string text = all_collectives<float>(member, rank, 2, 10); !text.empty())
        return text;  // seven of them, and two sends and two recvs
      const auto memory = member.group->allocate(100);
      EXPECT(memory);
      std::vector<float> values(10, 1.0F);
      for (int i = 0; i < 3; ++i) STEP(member.group->all_reduce({values.data(), 10, DType::kFloat32}));
      const auto failed = member.group->barrier();
      EXPECT(!failed && failed.error().message.find("barrier #11") != std::string::npos);
      EXPECT(failed.error().message.find("NCCL 2.18.3") != std::string::npos);
    }
    EXPECT(log_of(directory, rank) == "abort\n");
    return "";
  }));
}

TEST_CASE("arguments that NCCL refuses are the end of the group, as its communicator keeps the error") {
  const TemporaryDirectory directory;
  require_all(run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    log_to(directory, rank);
    ::setenv("MUSTER_FAKE_NCCL_REFUSE_AT", "1", 1);
    {
      Member member;
      STEP(member.join({&directory, 2}, rank));
      std::vector<float> values(10, 1.0F);
      const auto refused = member.group->all_reduce({values.data(), 10, DType::kFloat32});
      // Not kInvalidArgument, which leaves a group usable.
      EXPECT(!refused && refused.error().code == ErrorCode::kFailed);
      EXPECT(refused.error().message.find("all_reduce #1 of 10 F32") != std::string::npos);
      EXPECT(refused.error().message.find("invalid argument") != std::string::npos);
      const auto again = member.group->barrier();
      EXPECT(!again && again.error() == refused.error());
    }
    EXPECT(log_of(directory, rank) == "abort\n");
    return "";
  }));
}

TEST_CASE("arguments that the group refuses leave it usable") {
  const TemporaryDirectory directory;
  require_all(run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    Member member;
    STEP(member.join({&directory, 2}, rank));
    std::vector<float> values(10, 1.0F);
    const auto no_average = member.group->all_reduce({values.data(), 10, DType::kInt32}, ReduceOp::kAvg);
    EXPECT(!no_average && no_average.error().code == ErrorCode::kInvalidArgument);
    EXPECT(!member.group->broadcast({values.data(), 10, DType::kFloat32}, 2));
    EXPECT(!member.group->all_gather({values.data(), 10, DType::kFloat32},
                                     {values.data(), 10, DType::kFloat32}));
    EXPECT(!member.group->reduce_scatter({values.data(), 9, DType::kFloat32},
                                         {values.data(), 4, DType::kFloat32}));
    return all_collectives<float>(member, rank, 2, 10);
  }));
}

TEST_CASE("memory for collectives is zeroed, whichever allocator it comes from") {
  for (const bool shares_gpu : {false, true}) {
    const TemporaryDirectory directory;
    require_all(run_ranks({.world_size = 1}, [&](int) -> std::string {
      Member member;
      auto store = open_file_store(directory.file("store"));
      if (!store) return text_of(store.error());
      nccl::GroupSettings settings;
      settings.library = FAKE_NCCL;
      settings.shares_gpu = shares_gpu;
      auto group = nccl::make_group(**store, settings, member.device, &member.stream);
      if (!group) return text_of(group.error());
      const auto memory = (*group)->allocate(1000);
      if (!memory) return text_of(memory.error());
      for (int i = 0; i < 1000; ++i) EXPECT(static_cast<unsigned char*>(*memory)[i] == 0);
      return "";
    }));
  }
}

TEST_CASE("a group's memory is freed when the work on the compute stream no longer uses it") {
  const TemporaryDirectory directory;
  require_all(run_ranks({.world_size = 1}, [&](int rank) -> std::string {
    log_to(directory, rank);
    Member member;
    STEP(member.join({&directory, 1}, rank));
    auto memory = member.group->allocate(64);
    if (!memory) return text_of(memory.error());
    std::atomic<bool> is_used{true};
    member.stream.enqueue([&] {
      const Instant deadline = SteadyClock::now() + std::chrono::seconds(20);
      while (log_of(directory, rank) != "finalize\ndestroy\n" && SteadyClock::now() < deadline)
        std::this_thread::yield();
      for (int i = 0; i < 100'000'000; ++i) *static_cast<volatile char*>(*memory) = 1;
      is_used = false;
    });
    member.group.reset();
    EXPECT(!is_used);
    return "";
  }));
}

TEST_CASE("a Work that outlives its group keeps no communicator alive whose memory goes") {
  const TemporaryDirectory directory;
  require_all(run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    log_to(directory, rank);
    Member member;
    STEP(member.join({&directory, 2}, rank));
    const auto memory = member.group->allocate(4000);
    if (!memory) return text_of(memory.error());
    auto work = member.group->start_all_reduce({*memory, 1000, DType::kFloat32});
    if (!work) return text_of(work.error());
    member.group.reset();
    EXPECT(log_of(directory, rank) == "finalize\ndestroy\n");
    work->reset();
    return "";
  }));
}

TEST_CASE("a Work says again what its first wait() said") {
  const TemporaryDirectory directory;
  require_all(run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    ::setenv("MUSTER_FAKE_NCCL_REFUSE_AT", "1", 1);
    std::vector<float> values(10, 1.0F);
    Member member;
    STEP(member.join({&directory, 2}, rank));
    const auto work = member.group->start_all_reduce({values.data(), 10, DType::kFloat32});
    if (!work) return text_of(work.error());
    const auto first = (*work)->wait(), second = (*work)->wait();
    EXPECT(!first && !second && first.error() == second.error());
    return "";
  }));
}

TEST_CASE("collectives in a captured step are watched by counters and their events never queried") {
  const TemporaryDirectory directory;
  require_all(run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    log_to(directory, rank);
    if (rank == 1) ::setenv("MUSTER_FAKE_NCCL_HANG_AT", "4", 1);
    {
      std::vector<float> values(10, 1.0F);  // outlives the group: a collective may be stuck on it
      const Buffer buffer{values.data(), 10, DType::kFloat32};
      Member member;
      HostGraph graph, stuck;
      STEP(member.join({&directory, 2, Millis(30'000), FAKE_NCCL, kShort}, rank));
      member.device->begin_capture(member.stream, graph);
      EXPECT(!member.group->barrier());
      for (int i = 0; i < 3; ++i) STEP(member.group->all_reduce(buffer));
      member.device->end_capture();
      EXPECT(values[0] == 1.0F);
      graph.launch(member.stream);
      member.stream.synchronize();
      EXPECT(values[0] == 8.0F);
      STEP(member.group->status());
      member.device->begin_capture(member.stream, stuck);
      STEP(member.group->all_reduce(buffer));
      member.device->end_capture();
      const Instant begun = SteadyClock::now();
      stuck.launch(member.stream);
      member.stream.synchronize();  // ends because the watchdog aborts
      EXPECT(SteadyClock::now() - begun < Millis(25'000));
      const auto failed = member.group->all_reduce(buffer);
      EXPECT(!failed);
      EXPECT(failed.error().code == ErrorCode::kTimeout || failed.error().code == ErrorCode::kPeerGone);
      EXPECT(failed.error().message.find("all_reduce #5") != std::string::npos);
      if (failed.error().code == ErrorCode::kTimeout)
        EXPECT(failed.error().message.find("not finished after 3000 ms") != std::string::npos);
      const auto status = member.group->status();
      EXPECT(!status && status.error() == failed.error());
    }
    EXPECT(log_of(directory, rank) == "abort\n");
    return "";
  }));
}

TEST_CASE("a rank that is killed while replays are queued is named by the others, who end in order") {
  for (const bool nccl_notices : {true, false}) {
    INFO("NCCL notices it: " << nccl_notices);
    const TemporaryDirectory directory;
    const auto outcomes = run_ranks({.world_size = 3}, [&](int rank) -> std::string {
      log_to(directory, rank);
      if (!nccl_notices) ::setenv("MUSTER_FAKE_NCCL_DEAF", "1", 1);
      {
        std::vector<float> values(10, 1.0F);
        const Buffer buffer{values.data(), 10, DType::kFloat32};
        Member member;
        STEP(member.join({&directory, 3}, rank));
        HostGraph graph;
        member.device->begin_capture(member.stream, graph);
        for (int bucket = 0; bucket < 2; ++bucket) STEP(member.group->all_reduce(buffer, ReduceOp::kAvg));
        member.device->end_capture();
        graph.launch(member.stream);
        member.stream.synchronize();
        if (rank == 2) ::kill(::getpid(), SIGKILL);
        const Instant begun = SteadyClock::now();
        for (int i = 0; i < 64; ++i) graph.launch(member.stream);
        member.stream.synchronize();  // ends because the watchdog aborts
        EXPECT(SteadyClock::now() - begun < std::chrono::seconds(10));
        const auto status = member.group->status();
        EXPECT(!status && status.error().code == ErrorCode::kPeerGone);
        if (status.error().message.find("rank 2 has ended") == std::string::npos)
          return status.error().message;
        STEP(member.store->set("failed/" + std::to_string(rank), ""));  // nobody's end is taken for the cause
        STEP(member.store->get("failed/" + std::to_string(1 - rank), Millis(20'000)));
        graph.launch(member.stream);  // one that was on its way
      }
      EXPECT(log_of(directory, rank) == "abort\n");
      return "";
    });
    for (const int rank : {0, 1}) {
      const RankOutcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      INFO("rank " << rank << ": " << outcome.text);
      CHECK((outcome.ended && outcome.status == 0 && outcome.text.empty()));
    }
  }
}

TEST_CASE("a group that ends while a graph refers to it waits until the graph is gone") {
  const TemporaryDirectory directory;
  require_all(run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    log_to(directory, rank);
    std::vector<float> values(10, 1.0F);
    HostGraph graph;
    {
      Member member;
      STEP(member.join({&directory, 2}, rank));
      member.device->begin_capture(member.stream, graph);
      STEP(member.group->all_reduce({values.data(), 10, DType::kFloat32}));
      member.device->end_capture();
      std::thread dropper([&] {
        const Instant deadline = SteadyClock::now() + std::chrono::seconds(20);
        while (log_of(directory, rank) != "finalize\n" && SteadyClock::now() < deadline)
          std::this_thread::yield();
        graph.destroy();
      });
      member.group.reset();
      dropper.join();
    }
    EXPECT(log_of(directory, rank) == "finalize\ndestroy\n");
    return "";
  }));
}

TEST_CASE("a missing library is kNotFound and says what to install") {
  const TemporaryDirectory directory;
  Member member;
  const auto failed = member.join({&directory, 1, Millis(1000), directory.file("libnccl.so.2")}, 0);
  REQUIRE_FALSE(failed);
  REQUIRE(failed.error().code == ErrorCode::kNotFound);
  REQUIRE_THAT(failed.error().message,
               Catch::Contains("load NCCL") && Catch::Contains("MUSTER_NCCL_LIBRARY"));
}

TEST_CASE("what rank 0 says is refused where it holds no id") {
  const TemporaryDirectory directory;
  auto store = open_file_store(directory.file("store"));
  REQUIRE_OK(store);
  REQUIRE_OK((*store)->set("nccl/1/0/0", "+short"));
  Member member;
  const auto failed = member.join({&directory, 2, Millis(1000)}, 1);
  REQUIRE_FALSE(failed);
  REQUIRE(failed.error().code == ErrorCode::kProtocol);
}
