// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/gpu_watch.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <poll.h>

#include "launcher/report/kernel_log.h"
#include "tests/support/catch.h"
#include "tests/support/fieldwise.h"
#include "tests/support/hanging_driver.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;
using Catch::Matchers::Contains;

namespace {

constexpr std::chrono::seconds kTimeout{60};

/// The fake library's GPUs and events.
class FakeDriver {
 public:
  explicit FakeDriver(const std::string& gpus) {
    std::ofstream(file()) << gpus;
    ::setenv("FAKE_NVML", file().c_str(), 1);
  }
  ~FakeDriver() { ::unsetenv("FAKE_NVML"); }
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  [[nodiscard]] std::string file() const { return dir_.path() + "/gpus"; }
  void deliver(const std::string& events) const {
    std::ofstream(file() + ".new") << events;
    std::filesystem::rename(file() + ".new", file() + ".xid");
  }
  [[nodiscard]] static GpuPaths paths() {
    GpuPaths out;
    out.library = FAKE_NVML_LIBRARY;
    return out;
  }

 private:
  test::TemporaryDirectory dir_;
};

std::vector<std::string> wait_for_events(GpuWatch& watch, std::size_t count) {
  std::vector<std::string> out;
  const Instant deadline = SteadyClock::now() + kTimeout;
  while (out.size() < count && SteadyClock::now() < deadline) {
    pollfd wait{watch.output(), POLLIN, 0};
    ::poll(&wait, 1, static_cast<int>(time_left(deadline, SteadyClock::now()).count()));
    for (std::string& line : watch.take_new()) out.push_back(std::move(line));
  }
  return out;
}

const std::optional<std::vector<Gpu>>& wait_for_gpus(GpuWatch& watch) {
  pollfd answer{watch.output(), POLLIN, 0};
  REQUIRE(::poll(&answer, 1, static_cast<int>(Millis(kTimeout).count())) == 1);
  return watch.gpus();
}

}  // namespace

TEST_CASE("the GPUs are told by a process of its own, and then each Xid with GPU, number and meaning") {
  const FakeDriver driver(
      "GPU-aa 0000:3b:00.0 0 0 0 - MIG-1 MIG-2\nbroken\nGPU-bb 0001:5e:00.0 0 0 0 - no_events=1\n");
  auto watch = GpuWatch::start(FakeDriver::paths());
  REQUIRE(watch);
  const auto& gpus = wait_for_gpus(*watch);
  REQUIRE(gpus);
  REQUIRE(gpus->size() == 3);
  REQUIRE((*gpus)[0].slices == std::vector<std::string>{"MIG-1", "MIG-2"});
  REQUIRE((*gpus)[1].uuid.empty());  // it cannot be opened
  REQUIRE((*gpus)[2].uuid == "GPU-bb");
  REQUIRE((*gpus)[2].pci == "0001:5e:00.0");

  driver.deliver("GPU-aa 79\nGPU-aa 31 5\nGPU-aa 4711\n");
  const auto events = wait_for_events(*watch, 3);
  REQUIRE(events.size() == 3);
  REQUIRE(events[0] == "NVML: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus (GPU-aa)");
  REQUIRE(parse_xid(events[0]) == Xid{79, "0000:3b:00", 0});
  REQUIRE_THAT(events[1], Contains("Xid (PCI:0000:3b:00 GPU-I:05): 31, memory page fault"));
  REQUIRE(parse_xid(events[1]) == Xid{31, "0000:3b:00", 0});
  REQUIRE_THAT(events[2], Contains("4711, which NVIDIA's \"XID Errors\" explains (GPU-aa)"));
  REQUIRE(watch->take_new().empty());
}

TEST_CASE("without a driver, or with one that knows no events, the GPUs are all that is told") {
  const bool broken = GENERATE(true, false);
  const FakeDriver driver(broken ? "init=9\n" : "GPU-aa 0000:3b:00.0 0 0 0 - no_events=1\n");
  auto watch = GpuWatch::start(FakeDriver::paths());
  REQUIRE(watch);
  const auto& gpus = wait_for_gpus(*watch);
  REQUIRE(gpus);
  REQUIRE(gpus->size() == (broken ? 0 : 1));
  REQUIRE(watch->take_new().empty());
}

TEST_CASE("a driver that hangs is not waited for, and its watch can be ended") {
  test::HangingDriver driver;
  auto watch = GpuWatch::start(FakeDriver::paths());
  REQUIRE(watch);
  driver.wait_until_called();
  REQUIRE_FALSE(watch->gpus());  // else this would wait for ever
  REQUIRE(watch->take_new().empty());
}

TEST_CASE("the common numbers have a meaning, and a cleanup is no fault") {
  REQUIRE(meaning_of_xid(79) == "GPU has fallen off the bus");
  REQUIRE(meaning_of_xid(8) == "the GPU stopped processing");
  REQUIRE_FALSE(meaning_of_xid(172).empty());
  for (const int unknown : {-1, 0, 7, 173, 1'000'000}) REQUIRE(meaning_of_xid(unknown).empty());
  REQUIRE(is_hardware_xid(79));
  for (const int other : {13, 31, 43, 45, 154, 4711}) REQUIRE_FALSE(is_hardware_xid(other));
  REQUIRE(is_cleanup_xid(45));
  REQUIRE_FALSE(is_cleanup_xid(79));
}
