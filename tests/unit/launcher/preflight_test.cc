// SPDX-License-Identifier: Apache-2.0
#include "launcher/preflight.h"

#include <fstream>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;

Readings healthy() {
  Readings out;
  GpuReading gpu;
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
  out.copy_gib_per_s = 9.0;
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

TEST_CASE("a broken GPU makes a node unfit and is named, one that wants a reset is a warning") {
  const Finding lost = with_gpu([](GpuReading& gpu) { gpu.lost = true; });
  REQUIRE(lost.unfit);
  REQUIRE_THAT(lost.text, Catch::Contains("GPU 3 (GPU-x) cannot be opened"));
  const Finding ecc = with_gpu([](GpuReading& gpu) { gpu.uncorrected_ecc = 2; });
  REQUIRE(ecc.unfit);
  REQUIRE_THAT(ecc.text, Catch::Contains("2 uncorrected memory errors"));
  REQUIRE(with_gpu([](GpuReading& gpu) { gpu.rows_failed = true; }).unfit);
  REQUIRE_FALSE(with_gpu([](GpuReading& gpu) { gpu.reset_wanted = true; }).unfit);
}

TEST_CASE("who holds a GPU's memory is named; that is allowed only where GPUs are shared") {
  const auto held = [](GpuReading& gpu) {
    gpu.used_bytes = 9000 * kMiB;
    gpu.holders = {{77, 8800 * kMiB, "python3"}, {78, 100 * kMiB, "closing"}};
  };
  const Finding alone = with_gpu(held);
  REQUIRE(alone.unfit);
  REQUIRE_THAT(alone.text, Catch::Contains("GPU 3 (GPU-x): pid 77 (python3) holds 8800 MiB"));
  REQUIRE_FALSE(with_gpu(held, true).unfit);
  const Finding nobody = with_gpu([](GpuReading& gpu) { gpu.used_bytes = 9000 * kMiB; });
  REQUIRE_FALSE(nobody.unfit);
  REQUIRE_THAT(nobody.text, Catch::Contains("9000 MiB") && Catch::Contains("no process"));
}

TEST_CASE("disks that are full, out of files or not writable make a node unfit, scarce ones warn") {
  REQUIRE(with_disk([](DiskReading& disk) { disk.writable = false; }).unfit);
  REQUIRE(with_disk([](DiskReading& disk) { disk.free_bytes = kMiB; }).unfit);
  REQUIRE(with_disk([](DiskReading& disk) { disk.free_files = 3; }).unfit);
  const Finding scarce = with_disk([](DiskReading& disk) { disk.free_bytes = 100 * kMiB; });
  REQUIRE_FALSE(scarce.unfit);
  REQUIRE(scarce.text == "/logs (logs) has 100 MiB left");
}

TEST_CASE("limits, the clock, the driver and slow memory are judged") {
  Readings readings = healthy();
  readings.descriptors_needed = 30'000;
  REQUIRE(finding(readings).unfit);
  readings = healthy();
  readings.memory_lockable = false;
  REQUIRE_FALSE(finding(readings).unfit);
  readings = healthy();
  readings.clock_synchronised = false;
  REQUIRE_FALSE(finding(readings).unfit);
  readings = healthy();
  readings.driver_error = "nvmlInit: mismatch";
  REQUIRE(finding(readings) == Finding{true, "nvmlInit: mismatch"});
  readings = healthy();
  readings.copy_gib_per_s = 0.3;  // a busy node's, perhaps
  REQUIRE_FALSE(finding(readings).unfit);
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
    if (one.unfit) all += one.text + "\n";
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
  SECTION("and a driver that fails is the finding") {
    std::ofstream(directory.path() + "/gpus") << "init=18\n";
    REQUIRE_THAT(run_preflight(job, std::chrono::seconds(30))[0].text, Catch::Contains("version mismatch"));
  }
  ::unsetenv("FAKE_NVML");
}

TEST_CASE("a driver that does not answer makes the node unfit within the deadline") {
  const test::TemporaryDirectory directory;
  const std::string pipe = directory.path() + "/gpus";  // nobody ever writes: to open it waits for ever
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  ::setenv("FAKE_NVML", pipe.c_str(), 1);
  PreflightJob job;
  job.gpu_paths.library = FAKE_NVML_LIBRARY;
  const auto findings = run_preflight(job, std::chrono::milliseconds(300));
  ::unsetenv("FAKE_NVML");
  REQUIRE(findings.size() == 1);
  REQUIRE(findings[0].unfit);
  REQUIRE_THAT(findings[0].text, Catch::Contains("the GPUs (NVML) took more than 0.3 s"));
}
