// SPDX-License-Identifier: Apache-2.0
// What an NCCL group tells the launcher of its collectives: the fake NCCL on host streams.
#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <muster/file_store.h>

#include "rendezvous/base/clock.h"
#include "tests/support/catch.h"
#include "tests/support/host_device.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"
#include "worker_runtime/groups/nccl/nccl_group.h"

using namespace muster;
using namespace muster::testing;

namespace {

struct Member {
  test::TemporaryDirectory folder{"/dev/shm"};
  std::shared_ptr<RuntimePageMap> page = RuntimePageMap::open(folder.path() + "/progress");
  std::vector<float> values = std::vector<float>(10, 1.0F);
  std::unique_ptr<Store> store;
  std::shared_ptr<HostDevice> device = std::make_shared<HostDevice>();
  HostStream stream;
  std::unique_ptr<ProcessGroup> group;

  Result<void> join(const TemporaryDirectory& directory, int rank, Millis timeout) {
    MUSTER_TRY(store, open_file_store(directory.file("store")));
    nccl::GroupSettings settings;
    settings.rank = rank;
    settings.world_size = 2;
    settings.timeout = timeout;
    settings.library = FAKE_NCCL;
    settings.name = {.text = "default", .page = page, .tells_start = true};
    MUSTER_TRY(group, nccl::make_group(*store, settings, device, &stream));
    return {};
  }
  Result<void> reduce() { return group->all_reduce({values.data(), values.size(), DType::kFloat32}); }

  /// The comm thread writes meanwhile.
  template <class T>
  static T load(T& field) {
    return std::atomic_ref<T>(field).load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::string told() const {
    PageSlot& slot = page->page().slots[0];
    static constexpr std::array kStates = {"none", "begun", "finished", "failed", "gone"};
    return std::string(slot.name.data()) + " " + slot.backend.data() + ": " +
           std::string(kPageOperations.at(static_cast<std::size_t>(load(slot.operation)))) + " #" +
           std::to_string(load(slot.sequence)) + " of " + std::to_string(load(slot.size_bytes)) + " " +
           kStates.at(static_cast<std::size_t>(load(slot.state)));
  }
  /// The comm thread looks now and then.
  [[nodiscard]] std::string told_at_last(const std::string& expected) const {
    const Instant deadline = SteadyClock::now() + std::chrono::seconds(20);
    while (told() != expected && SteadyClock::now() < deadline) std::this_thread::yield();
    return told();
  }
};

#define STEP(expression)                                                 \
  do {                                                                   \
    if (auto step_ = (expression); !step_) return step_.error().message; \
  } while (false)
#define EXPECT_TOLD(text)                                                     \
  do {                                                                        \
    if (const std::string told_ = member.told_at_last(text); told_ != (text)) \
      return "line " + std::to_string(__LINE__) + ": " + told_;               \
  } while (false)

void on_two_ranks(const std::function<std::string(Member& member)>& body, Millis timeout = Millis(20'000)) {
  const TemporaryDirectory directory;
  const auto outcomes = run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, timeout));
    EXPECT_TOLD("default nccl: none #0 of 0 none");
    std::string text = body(member);
    member.group.reset();  // its last words come before the page goes
    return text;
  });
  for (const RankOutcome& outcome : outcomes) {
    INFO(outcome.text);
    CHECK((outcome.ended && outcome.status == 0 && outcome.text.empty()));
  }
}

}  // namespace

TEST_CASE("an NCCL group tells of each collective and of its start") {
  on_two_ranks([](Member& member) -> std::string {
    for (const PageMark mark : {PageMark::kNcclLoaded, PageMark::kNcclIdKnown})
      if (member.page->page().marks_ns.at(static_cast<std::size_t>(mark)) == 0) return "a mark is missing";
    STEP(member.group->barrier());
    EXPECT_TOLD("default nccl: barrier #1 of 0 finished");
    STEP(member.reduce());
    EXPECT_TOLD("default nccl: all_reduce #2 of 40 finished");
    member.group.reset();
    EXPECT_TOLD("default nccl: all_reduce #2 of 40 gone");
    return "";
  });
}

TEST_CASE("a collective that NCCL refuses or that does not finish is told as failed") {
  ::setenv("MUSTER_FAKE_NCCL_REFUSE_AT", "1", 1);
  on_two_ranks([](Member& member) -> std::string {
    if (member.reduce()) return "was not refused";
    EXPECT_TOLD("default nccl: all_reduce #1 of 40 failed");
    return "";
  });
  ::unsetenv("MUSTER_FAKE_NCCL_REFUSE_AT");
  ::setenv("MUSTER_FAKE_NCCL_HANG_AT", "1", 1);
  on_two_ranks(
      [](Member& member) -> std::string {
        STEP(member.reduce());
        if (member.group->barrier()) return "did not fail";
        EXPECT_TOLD("default nccl: all_reduce #1 of 40 failed");
        return "";
      },
      Millis(3000));
  ::unsetenv("MUSTER_FAKE_NCCL_HANG_AT");
}

TEST_CASE("replays of a captured step are told by their count, and do not hide who comes after them") {
  on_two_ranks([](Member& member) -> std::string {
    STEP(member.group->barrier());
    HostGraph graph;
    member.device->begin_capture(member.stream, graph);
    for (int i = 0; i < 3; ++i) STEP(member.reduce());
    member.device->end_capture();
    graph.launch(member.stream);
    member.stream.synchronize();
    EXPECT_TOLD("default nccl: a captured collective #3 of 0 finished");
    STEP(member.group->barrier());
    EXPECT_TOLD("default nccl: barrier #5 of 0 finished");
    return "";
  });
}
