// SPDX-License-Identifier: Apache-2.0
#include "launcher/checks/preflight.h"

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/hanging_driver.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;

Readings healthy() {
  Readings out;
  Nvml::GpuHealth gpu;
  gpu.index = 3;
  gpu.uuid = "GPU-x";
  gpu.used_bytes = 500 * kMiB;
  out.gpus.push_back(gpu);
  DiskReading disk;
  disk.path = "/logs";
  disk.use = "logs";
  disk.free_bytes = 5000 * kMiB;
  disk.free_files = 100'000;
  out.disks.push_back(disk);
  out.descriptors = 20'000;
  out.descriptors_needed = 100;
  return out;
}

/// The only finding.
Finding finding(const Readings& readings, bool share = false) {
  const auto all = judge(readings, share);
  REQUIRE(all.size() == 1);
  return all.front();
}

template <class Change>
Finding with_gpu(const Change& change, bool share = false) {
  Readings readings = healthy();
  change(readings.gpus[0]);
  return finding(readings, share);
}

template <class Change>
Finding with_disk(const Change& change) {
  Readings readings = healthy();
  change(readings.disks[0]);
  return finding(readings);
}

}  // namespace

TEST_CASE("a healthy node has no findings") {
  REQUIRE(judge(healthy(), false).empty());
  REQUIRE(judge(Readings{}, false).empty());
}

TEST_CASE("a broken GPU makes a node unhealthy and is named, one that needs a reset is a warning") {
  const Finding lost = with_gpu([](Nvml::GpuHealth& gpu) { gpu.lost = true; });
  REQUIRE(lost.error);
  REQUIRE_THAT(lost.text, Catch::Contains("GPU 3 (GPU-x) cannot be opened"));
  const Finding ecc = with_gpu([](Nvml::GpuHealth& gpu) { gpu.uncorrected_ecc = 2; });
  REQUIRE(ecc.error);
  REQUIRE_THAT(ecc.text, Catch::Contains("2 uncorrected memory errors"));
  REQUIRE(with_gpu([](Nvml::GpuHealth& gpu) { gpu.rows_failed = true; }).error);
  REQUIRE_FALSE(with_gpu([](Nvml::GpuHealth& gpu) { gpu.reset_wanted = true; }).error);
}

TEST_CASE("who holds a GPU's memory is named, and that is allowed only where GPUs are shared") {
  const auto held = [](Nvml::GpuHealth& gpu) {
    gpu.used_bytes = 9000 * kMiB;
    gpu.holders = {{77, 8800 * kMiB, "python3"}, {78, 100 * kMiB, "closing"}};
  };
  const Finding alone = with_gpu(held);
  REQUIRE(alone.error);
  REQUIRE_THAT(alone.text, Catch::Contains("GPU 3 (GPU-x): pid 77 (python3) holds 8800 MiB"));
  REQUIRE_FALSE(with_gpu(held, true).error);
  const Finding nobody = with_gpu([](Nvml::GpuHealth& gpu) { gpu.used_bytes = 9000 * kMiB; });
  REQUIRE_FALSE(nobody.error);
  REQUIRE_THAT(nobody.text, Catch::Contains("9000 MiB") && Catch::Contains("no process"));
}

TEST_CASE("a GPU whose clocks the hardware cuts makes a node unhealthy, one that is hot warns") {
  const auto throttled = [](unsigned long long reasons) {
    return with_gpu([=](Nvml::GpuHealth& gpu) { gpu.throttle = reasons; });
  };
  REQUIRE(throttled(Nvml::kHardwareSlowdown) ==
          Finding{true,
                  "GPU 3 (GPU-x): the hardware throttles its clocks (temperature or power); see nvidia-smi "
                  "-q -d PERFORMANCE"});
  REQUIRE_THAT(throttled(Nvml::kHardwareSlowdown | Nvml::kPowerBrake).text, Catch::Contains("(power brake)"));
  REQUIRE_THAT(throttled(Nvml::kHardwareSlowdown | Nvml::kHardwareThermal).text,
               Catch::Contains("(temperature)"));
  REQUIRE(throttled(Nvml::kPowerBrake).error);
  REQUIRE(throttled(Nvml::kSoftwareThermal) ==
          Finding{false, "GPU 3 (GPU-x): its clocks are lowered because it is hot"});
  Readings at_rest = healthy();
  at_rest.gpus[0].throttle = 0x1 | 0x2 | 0x4;  // idle, set so, at its power limit
  REQUIRE(judge(at_rest, false).empty());
}

TEST_CASE("a PCIe link below its best is a warning, and at rest its generation says nothing") {
  const auto linked = [](unsigned generation, unsigned width, bool full_speed) {
    Readings readings = healthy();
    readings.gpus[0].pcie = Nvml::PcieLink{generation, 5, width, 16};
    readings.gpus[0].full_speed = full_speed;
    return judge(readings, false);
  };
  REQUIRE(linked(5, 16, true).empty());
  REQUIRE(linked(1, 16, false).empty());
  REQUIRE(linked(5, 8, false) ==
          std::vector<Finding>{{false, "GPU 3 (GPU-x): its PCIe link has 8 of 16 lanes"}});
  REQUIRE(linked(3, 16, true) ==
          std::vector<Finding>{{false, "GPU 3 (GPU-x): its PCIe link runs at generation 3 of 5"}});
}

TEST_CASE("NVLinks that are down are told, and a board without bridges is not") {
  Readings readings = healthy();
  readings.gpus[0].links = {16, 2};
  REQUIRE(finding(readings) == Finding{false, "GPU 3 (GPU-x): 16 of 18 NVLinks are active"});
  readings.gpus[0].links = {0, 12};
  REQUIRE(judge(readings, false).empty());
  Nvml::GpuHealth other = readings.gpus[0];
  other.index = 4;
  other.links = {18, 0};
  readings.gpus.push_back(other);
  REQUIRE(finding(readings) ==
          Finding{false, "GPU 3 (GPU-x): 0 of 12 NVLinks are active; another GPU of this node has 18"});
  other.lost = true;
  readings.gpus = {other};
  REQUIRE(judge(readings, false).size() == 1);  // that it is lost
}

TEST_CASE("ports of InfiniBand and RoCE are read, and those that are not active are one warning") {
  const test::TemporaryDirectory directory;
  const auto add = [&](const std::string& port, const std::string& state, const std::string& physical) {
    std::filesystem::create_directories(directory.path() + "/" + port);
    std::ofstream(directory.path() + "/" + port + "/state") << state << "\n";
    std::ofstream(directory.path() + "/" + port + "/phys_state") << physical << "\n";
  };
  REQUIRE(read_ports(directory.path() + "/nothing").empty());
  add("mlx5_0/ports/1", "4: ACTIVE", "5: LinkUp");
  add("mlx5_1/ports/1", "1: DOWN", "3: Disabled");
  add("mlx5_2/ports/2", "2: INIT", "5: LinkUp");
  Readings readings = healthy();
  readings.ports = read_ports(directory.path());
  REQUIRE(readings.ports.size() == 3);
  REQUIRE(
      finding(readings) ==
      Finding{false,
              "2 of 3 InfiniBand or RoCE ports are not active: mlx5_1 port 1 (DOWN, Disabled), mlx5_2 port 2 "
              "(INIT, LinkUp), which no subnet manager has set up"});
  readings.ports = {{"mlx5_1", "1", "DOWN", ""}};
  REQUIRE(finding(readings) ==
          Finding{false,
                  "1 of 1 InfiniBand or RoCE ports is not active: mlx5_1 port 1 (DOWN); NCCL "
                  "will use TCP"});
  readings.ports = {{"mlx5_0", "1", "ACTIVE", "LinkUp"}, {"other", "1", "", ""}};
  REQUIRE(judge(readings, false).empty());
}

TEST_CASE("disks that are full, out of files or not writable make a node unhealthy, scarce ones warn") {
  REQUIRE(with_disk([](DiskReading& disk) { disk.writable = false; }).error);
  REQUIRE(with_disk([](DiskReading& disk) { disk.free_bytes = kMiB; }).error);
  REQUIRE(with_disk([](DiskReading& disk) { disk.free_files = 3; }).error);
  const Finding scarce = with_disk([](DiskReading& disk) { disk.free_bytes = 100 * kMiB; });
  REQUIRE_FALSE(scarce.error);
  REQUIRE(scarce.text == "/logs (logs) has 100 MiB left");
}

TEST_CASE("limits, the clock and the driver are judged") {
  Readings readings = healthy();
  readings.descriptors_needed = 30'000;
  REQUIRE(finding(readings).error);
  readings = healthy();
  readings.memory_lockable = false;
  REQUIRE_FALSE(finding(readings).error);
  readings = healthy();
  readings.clock_synchronised = false;
  REQUIRE_FALSE(finding(readings).error);
  readings = healthy();
  readings.driver_error = "nvmlInit: mismatch";
  REQUIRE(finding(readings) == Finding{true, "nvmlInit: mismatch"});
}

TEST_CASE("the GPUs of the job are read, in a child that reports over a pipe") {
  const test::TemporaryDirectory directory;
  std::ofstream(directory.path() + "/gpus") << "broken\nGPU-1 0000:17:00.0 8192 1 0 " << ::getpid() << "\n";
  ::setenv("FAKE_NVML", (directory.path() + "/gpus").c_str(), 1);
  PreflightJob job;
  job.gpu_paths.library = FAKE_NVML_LIBRARY;
  job.gpus = std::vector<int>{1};
  const auto findings = run_preflight(job, std::chrono::seconds(30));
  std::string all;
  for (const Finding& one : findings)
    if (one.error) all += one.text + "\n";
  REQUIRE_THAT(all, Catch::Contains("GPU 1 (GPU-1) has 1 uncorrected memory error since"));
  REQUIRE_THAT(all,
               Catch::Contains("pid " + std::to_string(::getpid()) + " (unit_placement) holds 8192 MiB"));
  REQUIRE_THAT(all, !Catch::Contains("GPU 0"));

  SECTION("or those that CUDA_VISIBLE_DEVICES leaves") {
    job.gpus.reset();
    job.visible_devices = "0";
    const auto others = run_preflight(job, std::chrono::seconds(30));
    REQUIRE_FALSE(others.empty());
    REQUIRE_THAT(others[0].text, Catch::Contains("GPU 0 cannot be opened"));
  }
  SECTION("with their links, clocks and repairs") {
    std::ofstream(directory.path() + "/gpus")
        << "broken\nGPU-1 0000:17:00.0 0 0 0 - generation=3/5 width=8/16 "
           "state=0 throttle=0x48 links=17/18 remap_pending=1\n";
    std::filesystem::create_directories(directory.path() + "/rdma/mlx5_0/ports/1");
    std::ofstream(directory.path() + "/rdma/mlx5_0/ports/1/state") << "1: DOWN\n";
    job.rdma = directory.path() + "/rdma";
    std::string told;
    for (const Finding& one : run_preflight(job, std::chrono::seconds(30)))
      told += (one.error ? "error " : "warning ") + one.text + "\n";
    REQUIRE_THAT(told, Catch::Contains("warning GPU 1 (GPU-1) needs a reset to repair its memory"));
    REQUIRE_THAT(told, Catch::Contains("warning GPU 1 (GPU-1): its PCIe link has 8 of 16 lanes"));
    REQUIRE_THAT(told, Catch::Contains("warning GPU 1 (GPU-1): its PCIe link runs at generation 3 of 5"));
    REQUIRE_THAT(told, Catch::Contains("warning GPU 1 (GPU-1): 17 of 18 NVLinks are active"));
    REQUIRE_THAT(told,
                 Catch::Contains("error GPU 1 (GPU-1): the hardware throttles its clocks (temperature)"));
    REQUIRE_THAT(told,
                 Catch::Contains("warning 1 of 1 InfiniBand or RoCE ports is not active: mlx5_0 port 1"));
  }
  SECTION("and a driver that fails is the finding") {
    std::ofstream(directory.path() + "/gpus") << "init=18\n";
    REQUIRE_THAT(run_preflight(job, std::chrono::seconds(30))[0].text, Catch::Contains("version mismatch"));
  }
  ::unsetenv("FAKE_NVML");
}

TEST_CASE(
    "what the driver, its libraries and CUDA_VISIBLE_DEVICES are is told, and makes no node unhealthy") {
  const test::TemporaryDirectory directory;
  const std::string gpus = directory.path() + "/gpus";
  const auto told = [&](const std::string& driver, const std::string& visible) {
    std::ofstream(gpus) << driver << "GPU-1 0000:17:00.0 0 0 0 -\nGPU-2 0000:18:00.0 0 0 0 -\n";
    ::setenv("FAKE_NVML", gpus.c_str(), 1);
    PreflightJob job;
    job.gpu_paths.library = FAKE_NVML_LIBRARY;
    job.visible_devices = visible;
    std::string out;
    for (const Finding& one : run_preflight(job, std::chrono::seconds(60))) {
      REQUIRE_FALSE(one.error);
      out += (one.note ? "note " : "warning ") + one.text + "\n";
    }
    ::unsetenv("FAKE_NVML");
    return out;
  };
  const std::string all = told("driver=580.159.04/13000\n", "1");
  REQUIRE_THAT(all, Catch::Contains("note driver 580.159.04 (CUDA up to 13.0), CUDA runtime "));
  REQUIRE_THAT(all, Catch::Contains("note CUDA_VISIBLE_DEVICES=1: local rank 0 uses nvidia-smi's GPU 1"));
  // The variable may come from a file with a newline at its end.
  const std::string broken = told("", "1,\n!x");
  REQUIRE_THAT(broken,
               Catch::Contains("note CUDA_VISIBLE_DEVICES=1, !x: local rank 0 uses nvidia-smi's GPU 1"));
  REQUIRE_THAT(broken, !Catch::Contains("note driver"));
}

TEST_CASE("a driver that does not answer makes the node unhealthy within the deadline") {
  const test::HangingDriver hanging;
  PreflightJob job;
  job.gpu_paths.library = FAKE_NVML_LIBRARY;
  const auto findings = run_preflight(job, std::chrono::milliseconds(1500));
  const DriverCheck driver = check_driver(job.gpu_paths, std::chrono::milliseconds(1500));
  REQUIRE(driver.finding);
  REQUIRE(driver.finding->error);
  REQUIRE_THAT(driver.finding->text, Catch::Contains("does not answer within 1.5 s"));
  REQUIRE_FALSE(driver.process);
  REQUIRE(findings.size() == 1);
  REQUIRE(findings[0].error);
  REQUIRE_THAT(findings[0].text, Catch::Contains("the check of the GPUs (NVML) took more than 1.5 s"));
}

TEST_CASE("a check that hangs holds nothing of muster's: whoever reads muster's output sees its end") {
  const test::TemporaryDirectory directory;
  const std::string fifo = directory.path() + "/gpus";  // to open it, and to read from it, waits for a writer
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  ::setenv("FAKE_NVML", fifo.c_str(), 1);
  int ends[2];  // as stdout, without close-on-exec
  REQUIRE(::pipe(ends) == 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  PreflightJob job;
  job.gpu_paths.library = FAKE_NVML_LIBRARY;
  std::thread checking([&job] { (void)run_preflight(job, std::chrono::seconds(60)); });
  // Opens once the check has: from then on it waits for what nobody writes.
  UniqueFd hold;
  const Instant deadline = SteadyClock::now() + std::chrono::seconds(60);
  while (!hold && SteadyClock::now() < deadline) {
    hold.reset(::open(fifo.c_str(), O_WRONLY | O_NONBLOCK));
    if (!hold) ::poll(nullptr, 0, 1);
  }
  writer.reset();
  pollfd end{reader.get(), POLLIN, 0};
  const int ended = ::poll(&end, 1, 30'000);
  // The check may open it again, and then does not wait any more.
  std::ofstream(directory.path() + "/none").close();
  std::filesystem::rename(directory.path() + "/none", fifo);
  hold.reset();
  checking.join();
  ::unsetenv("FAKE_NVML");
  REQUIRE(ended == 1);
}

TEST_CASE("each visible GPU is checked, and each slice by itself") {
  std::vector<Gpu> gpus(3);
  for (int i = 0; i < 3; ++i) gpus[static_cast<std::size_t>(i)].index = i;
  gpus[2].uuid = "GPU-c";
  gpus[1].slices = {"MIG-x", "MIG-y"};
  using Devices = std::vector<std::string>;
  REQUIRE(gpu_devices(gpus, "2,0") == Devices{"GPU 2 (GPU-c)=gpu:0", "GPU 0=gpu:1"});
  REQUIRE(gpu_devices(gpus, "MIG-x,MIG-y") ==
          Devices{"GPU slice MIG-x=slice:MIG-x", "GPU slice MIG-y=slice:MIG-y"});
  REQUIRE(gpu_devices(gpus, std::nullopt).size() == 3);
  REQUIRE(gpu_devices(gpus, "").empty());
}

TEST_CASE("without GPUs every socket is checked, and as many workers as there are cores for") {
  Topology topology;
  for (int i = 0; i < 4; ++i) topology.cores.push_back({{2 * i, 2 * i + 1}, 0, i / 2, 0});
  REQUIRE(cpu_devices(topology, 1) ==
          std::vector<std::string>{"socket 0=cpus:0,1,2,3", "socket 1=cpus:4,5,6,7"});
  const auto many = cpu_devices(topology, 64);
  REQUIRE(many.size() == 4);
  REQUIRE(many[3] == "socket 1, process 1=cpus:4,5,6,7");
}
