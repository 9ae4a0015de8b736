// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/gpu_watch.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <poll.h>

#include "launcher/report/gpu_metrics.h"
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

/// Looks until `enough` says so.
template <class Enough>
GpuWatch::Readings wait_for_figures(GpuWatch& watch, const Enough& enough) {
  const Instant deadline = SteadyClock::now() + kTimeout;
  std::optional<GpuWatch::Readings> out;
  while (SteadyClock::now() < deadline) {
    out = watch.figures(SteadyClock::now());
    if (out && enough(*out)) return *out;
    ::poll(nullptr, 0, 10);
  }
  FAIL("no such figures in time");
  return {};
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

TEST_CASE("figures are read when somebody looks, and a fault is among them") {
  const FakeDriver driver(
      "GPU-aa 0000:3b:00.0 1024 3 0 - util=97/41 total=4096 power=350500 energy=123456789 temperature=64/71 "
      "clock=1980/2619 throttle=0x4 corrected_ecc=2\nbroken\nGPU-bb 0001:5e:00.0 0 0 0 - no_events=1\n");
  auto watch = GpuWatch::start(FakeDriver::paths());
  REQUIRE(watch);
  REQUIRE(wait_for_gpus(*watch));
  const auto readings = wait_for_figures(*watch, [](const auto&) { return true; });
  REQUIRE(readings.gpus.size() == 3);
  const Nvml::Figures& first = readings.gpus[0];
  REQUIRE(first.util_percent == 97);
  REQUIRE(first.memory_util_percent == 41);
  REQUIRE(first.memory_used_bytes == 1024.0 * (1 << 20));
  REQUIRE(first.memory_free_bytes == 3072.0 * (1 << 20));
  REQUIRE(first.memory_total_bytes == 4096.0 * (1 << 20));
  REQUIRE(first.power_w == 350.5);
  REQUIRE(first.energy_mj == 123'456'789);
  REQUIRE(first.temperature_c == 64);
  REQUIRE(first.memory_temperature_c == 71);
  REQUIRE(first.sm_clock_mhz == 1980);
  REQUIRE(first.memory_clock_mhz == 2619);
  REQUIRE(first.clock_reasons == 4);
  REQUIRE(first.corrected_ecc == 2);
  REQUIRE(first.uncorrected_ecc == 3);
  REQUIRE(first.xid == 0);
  REQUIRE(std::isnan(readings.gpus[1].power_w));  // it cannot be opened
  REQUIRE(std::isnan(readings.gpus[2].power_w));  // it does not tell
  REQUIRE(readings.gpus[2].memory_used_bytes == 0);
  driver.deliver("GPU-aa 79\n");
  wait_for_figures(*watch, [](const auto& now) { return now.gpus[0].xid == 79; });
  REQUIRE(wait_for_events(*watch, 1).size() == 1);  // and it is told as before
}

TEST_CASE("a driver that is wedged while figures are read leaves the last ones, with their age") {
  const FakeDriver driver("GPU-aa 0000:3b:00.0 0 0 0 - util=97\n");
  auto watch = GpuWatch::start(FakeDriver::paths());
  REQUIRE(watch);
  const Instant first = wait_for_figures(*watch, [](const auto&) { return true; }).at;
  wait_for_figures(*watch, [&](const auto& now) { return now.at > first; });  // it is read again by itself
  std::ofstream(driver.file() + ".hang") << "nvmlDeviceGetUtilizationRates";
  const auto stale = wait_for_figures(
      *watch, [&](const auto& now) { return SteadyClock::now() - now.at > std::chrono::seconds(3); });
  REQUIRE(stale.gpus[0].util_percent == 97);
}

TEST_CASE("an agent's figures have dcgm-exporter's names, units and labels, and the rank of the GPU") {
  Gpu gpu;
  gpu.index = 3;
  gpu.uuid = "GPU-aa";
  gpu.name = "NVIDIA H100 80GB HBM3";
  gpu.pci = "0000:3b:00.0";
  NodeGpus node{{{gpu, {}, {8, 9}}, {}}, 1.5};
  node.gpus[0].figures.memory_used_bytes = 512.0 * (1 << 20);
  node.gpus[0].figures.power_w = 350.5;
  node.gpus[1].gpu.index = 4;
  node.gpus[1].figures.power_w = 60;
  MetricsText out;
  put_gpu_metrics(out, node, "host-a", "job-b");
  REQUIRE(
      out.take() ==
      "# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).\n# TYPE DCGM_FI_DEV_FB_USED gauge\n"
      "DCGM_FI_DEV_FB_USED{gpu=\"3\",UUID=\"GPU-aa\",pci_bus_id=\"00000000:3B:00.0\",device=\"nvidia3\","
      "modelName=\"NVIDIA H100 80GB HBM3\",Hostname=\"host-a\",rank=\"8-9\",run_id=\"job-b\"} 512\n"
      "# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).\n# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n"
      "DCGM_FI_DEV_POWER_USAGE{gpu=\"3\",UUID=\"GPU-aa\",pci_bus_id=\"00000000:3B:00.0\",device=\"nvidia3\","
      "modelName=\"NVIDIA H100 80GB HBM3\",Hostname=\"host-a\",rank=\"8-9\",run_id=\"job-b\"} 350.5\n"
      "DCGM_FI_DEV_POWER_USAGE{gpu=\"4\",UUID=\"\",pci_bus_id=\"\",device=\"nvidia4\",modelName=\"\","
      "Hostname=\"host-a\",rank=\"\",run_id=\"\"} 60\n"
      "# HELP muster_gpu_figures_age_seconds Age of the figures of the GPUs; it grows where the driver does "
      "not answer.\n# TYPE muster_gpu_figures_age_seconds gauge\nmuster_gpu_figures_age_seconds 1.5\n");
}

TEST_CASE("the common numbers have a meaning, and a cleanup is no fault") {
  REQUIRE(meaning_of_xid(79).text == "GPU has fallen off the bus");
  REQUIRE(meaning_of_xid(8).text == "the GPU stopped processing");
  REQUIRE_FALSE(meaning_of_xid(172).text.empty());
  for (const int unknown : {-1, 0, 7, 173, 1'000'000}) REQUIRE(meaning_of_xid(unknown).text.empty());
  REQUIRE(meaning_of_xid(79).hardware);
  for (const int other : {13, 31, 43, 45, 154, 4711}) REQUIRE_FALSE(meaning_of_xid(other).hardware);
  REQUIRE(is_cleanup_xid(45));
  REQUIRE_FALSE(is_cleanup_xid(79));
}
