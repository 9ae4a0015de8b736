// SPDX-License-Identifier: Apache-2.0
// What groups tell of their collectives is what the launcher reads from the page.
#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <optional>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "launcher/progress/collective_state.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "worker_runtime/core/runtime_page_map.h"

using namespace muster;
using muster::launcher::CollectiveState;
using muster::launcher::read_collectives;
using muster::test::TemporaryDirectory;

namespace {

/// As the launcher's: in memory.
struct Place {
  TemporaryDirectory folder{"/dev/shm"};
  std::string progress = folder.path() + "/progress";
  std::shared_ptr<RuntimePageMap> map = RuntimePageMap::open(progress);
};

CollectiveState word(std::string_view group, PageOperation operation, PageState state, std::uint64_t sequence,
                     std::uint64_t bytes, int root = -1) {
  return {std::string(group), "shm", 4, operation, state, sequence, bytes, root};
}

}  // namespace

TEST_CASE("the collective that a group began last is read with its state, and each group has its own") {
  Place at;
  REQUIRE(at.map != nullptr);
  CollectiveRecord record(at.map, "default", "shm", 4);
  REQUIRE(read_collectives(at.progress) ==
          std::vector{word("default", PageOperation::kNone, PageState::kNone, 0, 0)});
  record.begin(PageOperation::kAllReduce, 17, 4096);
  REQUIRE(read_collectives(at.progress) ==
          std::vector{word("default", PageOperation::kAllReduce, PageState::kBegun, 17, 4096)});
  record.end(true);
  CollectiveRecord second(at.map, "gpu", "shm", 4);
  second.begin(PageOperation::kBroadcast, 0, 8, 2);
  second.end(false);
  REQUIRE(read_collectives(at.progress) ==
          std::vector{word("default", PageOperation::kAllReduce, PageState::kFinished, 17, 4096),
                      word("gpu", PageOperation::kBroadcast, PageState::kFailed, 0, 8, 2)});
}

TEST_CASE("a group that is gone says so, and the next one of its name takes its place") {
  Place at;
  {
    CollectiveRecord record(at.map, "default", "shm", 4);
    record.begin(PageOperation::kBarrier, 3, 0);
    record.end(true);
    CollectiveRecord moved = std::move(record);
  }
  REQUIRE(read_collectives(at.progress) ==
          std::vector{word("default", PageOperation::kBarrier, PageState::kGone, 3, 0)});
  CollectiveRecord again(at.map, "default", "shm", 4);
  REQUIRE(read_collectives(at.progress) ==
          std::vector{word("default", PageOperation::kNone, PageState::kNone, 0, 0)});
  again.begin(PageOperation::kAllGather, 0, 64);
  REQUIRE(read_collectives(at.progress) ==
          std::vector{word("default", PageOperation::kAllGather, PageState::kBegun, 0, 64)});
}

TEST_CASE("groups beyond those that the page has room for tell nothing, and long names are cut") {
  Place at;
  std::vector<CollectiveRecord> records;
  for (std::size_t i = 0; i < RuntimePage::kSlots + 2; ++i) {
    records.emplace_back(at.map, std::string(100, 'x').insert(0, std::to_string(i)),
                         "a longer backend's name", 4);
    records.back().begin(PageOperation::kBarrier, i, 0);
  }
  const auto words = read_collectives(at.progress);
  REQUIRE(words.size() == RuntimePage::kSlots);
  REQUIRE(words.back().group.size() == 63);
  REQUIRE(words.back().backend.size() == 15);
}

TEST_CASE("without a launcher a record goes nowhere, and on a disk no file is made") {
  REQUIRE(RuntimePageMap::open("/proc/progress") == nullptr);
  REQUIRE(RuntimePageMap::open("/dev/shm/no_such_folder_here/progress") == nullptr);
  CollectiveRecord record(nullptr, "default", "shm", 4);
  record.begin(PageOperation::kBarrier, 0, 0);
  record.end(true);
  CollectiveRecord().end(true);
}

TEST_CASE("what is read while it is written is whole or left out") {
  Place at;
  CollectiveRecord record(at.map, "default", "shm", 4);
  std::atomic<bool> stop{false};
  // Every number of a collective follows from its sequence.
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop; ++i) {
      record.begin(i % 2 == 0 ? PageOperation::kAllReduce : PageOperation::kBroadcast, i, i * 8,
                   static_cast<int>(i % 4));
      if (i % 64 == 0) std::this_thread::yield();
    }
  });
  std::size_t seen = 0;
  for (int i = 0; i < 20'000; ++i)
    for (const CollectiveState& each : read_collectives(at.progress)) {
      if (each.operation == PageOperation::kNone) continue;
      ++seen;
      const bool whole = each.size_bytes == each.sequence * 8 &&
                         each.root == static_cast<int>(each.sequence % 4) &&
                         (each.operation == PageOperation::kAllReduce) == (each.sequence % 2 == 0);
      if (!whole) FAIL("a mixture at #" << each.sequence);
    }
  stop = true;
  writer.join();
  // At rest it is always read.
  REQUIRE(read_collectives(at.progress).size() == 1);
  INFO(seen << " were read in between");
}

TEST_CASE("a second living group of one name tells nothing, and does not disturb the first") {
  Place at;
  CollectiveRecord first(at.map, "default", "shm", 4);
  first.begin(PageOperation::kBarrier, 3, 0);
  CollectiveRecord second(RuntimePageMap::open(at.progress), "default", "tcp", 4);
  second.begin(PageOperation::kAllReduce, 9, 8);
  REQUIRE(read_collectives(at.progress) ==
          std::vector{word("default", PageOperation::kBarrier, PageState::kBegun, 3, 0)});
}

TEST_CASE("a collective ends once") {
  Place at;
  CollectiveRecord record(at.map, "default", "shm", 4);
  record.end(false);
  REQUIRE(read_collectives(at.progress).front().state == PageState::kNone);
  record.begin(PageOperation::kBarrier, 0, 0);
  record.end(true);
  record.end(false);
  REQUIRE(read_collectives(at.progress).front().state == PageState::kFinished);
}

TEST_CASE("a child of the worker neither ends its groups nor takes their places") {
  Place at;
  std::optional<CollectiveRecord> record(std::in_place, at.map, "default", "shm", 4);
  record->begin(PageOperation::kBarrier, 3, 0);
  const pid_t child = ::fork();
  if (child == 0) {
    record.reset();
    CollectiveRecord own(RuntimePageMap::open(at.progress), "default", "tcp", 2);
    own.begin(PageOperation::kAllReduce, 77, 8);
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  REQUIRE(read_collectives(at.progress) ==
          std::vector{word("default", PageOperation::kBarrier, PageState::kBegun, 3, 0)});
}

TEST_CASE("what is no page becomes one") {
  Place at;
  at.map.reset();
  std::ofstream(at.progress + ".runtime") << std::string(4096, 'x');
  at.map = RuntimePageMap::open(at.progress);
  CollectiveRecord record(at.map, "default", "shm", 4);
  REQUIRE(read_collectives(at.progress) ==
          std::vector{word("default", PageOperation::kNone, PageState::kNone, 0, 0)});
}

TEST_CASE("a page of a program that was executed before is taken over") {
  Place at;
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  int status = -1;
  REQUIRE(::waitpid(gone, &status, 0) == gone);
  {
    const int fd = ::open((at.progress + ".runtime").c_str(), O_RDWR | O_CLOEXEC);
    RuntimePage page;
    REQUIRE(::pread(fd, &page, sizeof page, 0) == sizeof page);
    page.slots[0].owner = static_cast<std::uint32_t>(gone);
    page.slots[0].version = 6;
    page.slots[0].operation = PageOperation::kBarrier;
    page.slots[0].state = PageState::kBegun;
    page.slots[1] = page.slots[0];
    page.slots[1].owner = static_cast<std::uint32_t>(::getpid());  // before it executed this program
    std::memcpy(page.slots[1].name.data(), "default", 7);
    REQUIRE(::pwrite(fd, &page, sizeof page, 0) == sizeof page);
    ::close(fd);
  }
  REQUIRE(read_collectives(at.progress).size() == 2);
  CollectiveRecord record(at.map, "default", "shm", 4);
  REQUIRE(read_collectives(at.progress) ==
          std::vector{word("default", PageOperation::kNone, PageState::kNone, 0, 0)});
}

TEST_CASE("a mark of the start is made once") {
  Place at;
  at.map->mark(PageMark::kGroupReady);
  const std::int64_t first = at.map->page().marks_ns[static_cast<std::size_t>(PageMark::kGroupReady)];
  REQUIRE(first > 0);
  at.map->mark(PageMark::kGroupReady);
  REQUIRE(at.map->page().marks_ns[static_cast<std::size_t>(PageMark::kGroupReady)] == first);
  REQUIRE(at.map->page().marks_ns[static_cast<std::size_t>(PageMark::kInitBegun)] == 0);
}
