// SPDX-License-Identifier: Apache-2.0
// What is read from the machine: CPU sets, topology, limits, GPUs.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdlib.h>

#include "launcher/hardware/cores.h"
#include "launcher/hardware/gpus.h"
#include "launcher/hardware/nvml.h"
#include "launcher/hardware/topology.h"
#include "launcher/text/rank_ranges.h"
#include "rendezvous/base/text.h"
#include "tests/support/catch.h"
#include "tests/support/fieldwise.h"
#include "tests/support/synthetic_topology.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;

namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

/// The fake's inventory, for as long as it lives.
struct FakeGpus {
  explicit FakeGpus(const std::string& text) {
    write(directory.path() + "/gpus", text);
    ::setenv("FAKE_NVML", (directory.path() + "/gpus").c_str(), 1);
  }
  ~FakeGpus() { ::unsetenv("FAKE_NVML"); }
  FakeGpus(const FakeGpus&) = delete;
  FakeGpus& operator=(const FakeGpus&) = delete;
  test::TemporaryDirectory directory;
};

}  // namespace

TEST_CASE("sets of CPUs are read and written as the kernel writes them") {
  for (const char* text : {"", "0", "0-3", "0-1,8,10-11", "63-64"})
    REQUIRE(to_ranges(*parse_ranges(text)) == text);
  REQUIRE(*parse_ranges(" 3, 1-2 ,2\n") == CpuSet{1, 2, 3});
  for (const char* bad : {"a", "1-", "-1", "3-2", "1,,2", "1,", "0-65536", "1 2"})
    REQUIRE_FALSE(parse_ranges(bad));
  REQUIRE(to_mask({0, 3, 64}) == std::vector<unsigned long>{9, 1});
  REQUIRE(to_mask({}) == std::vector<unsigned long>{0});
  REQUIRE(intersection({1, 2, 3}, {2, 3, 4}) == CpuSet{2, 3});
}

TEST_CASE("this machine's topology covers exactly the CPUs of the mask") {
  const CpuSet mask = current_affinity();
  REQUIRE_FALSE(mask.empty());
  const auto topology = read_topology(mask);
  REQUIRE_OK(topology);
  CpuSet seen;
  for (const Core& core : topology->cores) seen = sorted_union(seen, core.cpus);
  REQUIRE(seen == mask);
  REQUIRE(topology->this_machine);
  REQUIRE(topology->numa_nodes >= 1);
  const auto one = read_topology({mask.back()});
  REQUIRE_OK(one);
  REQUIRE(one->cores.size() == 1);
  REQUIRE(one->cores[0].cpus == CpuSet{mask.back()});
}

TEST_CASE("a topology keeps the allowed threads of each core, with its node, socket and cache") {
  const auto topology = test::synthetic_topology("pack:2 numa:1 l3:2 core:2 pu:2", *parse_ranges("1-5,15"));
  REQUIRE_OK(topology);
  REQUIRE(topology->cores.size() == 4);
  REQUIRE(topology->cores[0].cpus == CpuSet{1});
  REQUIRE(topology->cores[1].cpus == CpuSet{2, 3});
  REQUIRE(topology->cores[0].cache == topology->cores[1].cache);
  REQUIRE(topology->cores[0].cache != topology->cores[2].cache);
  REQUIRE(topology->cores[3].numa_node == 1);
  REQUIRE(topology->cores[3].socket == 1);
  REQUIRE(topology->numa_nodes == 2);
  REQUIRE(topology->sockets == 2);
  const auto nothing = test::synthetic_topology("core:2 pu:1", {7});
  REQUIRE_FALSE(nothing);
  REQUIRE_THAT(nothing.error().message, Catch::Contains("the mask is 7, hwloc sees 0-1"));
}

TEST_CASE("of a machine that is described this one's mask leaves nothing out") {
  ::setenv("HWLOC_SYNTHETIC", "core:2 pu:1", 1);
  const auto topology = read_topology({7});
  ::unsetenv("HWLOC_SYNTHETIC");
  REQUIRE_OK(topology);
  REQUIRE(topology->cores.size() == 2);
  REQUIRE_FALSE(topology->this_machine);
}

TEST_CASE("cores are counted once for all their threads, and CPUs' worth of time by the cgroup's limits") {
  const CpuSet mask = current_affinity();
  const test::TemporaryDirectory directory;
  const fs::path root = directory.path();
  CoreFiles files{root / "cpu", root / "cgroup", root / "fs"};
  REQUIRE(count_cores(files) == static_cast<int>(mask.size()));  // nothing is known of siblings
  for (const int cpu : mask)
    write(root / "cpu" / ("cpu" + std::to_string(cpu)) / "topology/thread_siblings_list",
          to_ranges(mask) + "\n");
  REQUIRE(count_cores(files) == 1);
  REQUIRE(count_cores() <= count_cpus());
  REQUIRE(count_cpus() == static_cast<int>(mask.size()));

  REQUIRE(cpu_quota(files) == 0);
  SECTION("of version 2, by the strictest group up to the root") {
    write(root / "cgroup", "0::/job/step\n");
    REQUIRE(cpu_quota(files) == 0);
    write(root / "fs/job/step/cpu.max", "max 100000\n");
    REQUIRE(cpu_quota(files) == 0);
    write(root / "fs/job/cpu.max", "350000 100000\n");
    REQUIRE(cpu_quota(files) == 4);
    write(root / "fs/cpu.max", "150000 100000\n");
    REQUIRE(cpu_quota(files) == 2);
    write(root / "cpu/online", "0-62,127\n");
    const CpuBudget budget = read_cpu_budget(files);
    REQUIRE(budget.online == 64);
    REQUIRE(budget.allowed == count_cpus());
    REQUIRE(budget.usable() == std::min(2, count_cpus()));
  }
  SECTION("of version 1, also where the path is the host's") {
    write(root / "cgroup", "9:memory:/x\n4:cpu,cpuacct:/docker/abc\n");
    write(root / "fs/memory/x/cpu.cfs_quota_us", "100000\n");
    write(root / "fs/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    write(root / "fs/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    REQUIRE(cpu_quota(files) == 0);
    write(root / "fs/cpu,cpuacct/cpu.cfs_quota_us", "300000\n");
    REQUIRE(cpu_quota(files) == 3);
  }
}

TEST_CASE("GPUs are read from the management library, with their slices and NUMA nodes") {
  const FakeGpus fake("GPU-1 0000:17:00.0 0 0 0 - MIG-1 MIG-2\nbroken\nGPU-3 0000:AB:00.0 0 0 0 -\n");
  const fs::path sys = fake.directory.path();
  write(sys / "bus/pci/devices/0000:ab:00.0/numa_node", "1\n");
  const auto gpus = find_gpus({FAKE_NVML_LIBRARY, "/nonexistent", sys / "bus/pci/devices"});
  REQUIRE(gpus.size() == 3);
  REQUIRE(gpus[0].uuid == "GPU-1");
  REQUIRE(gpus[0].name == "Fake GPU");
  REQUIRE(gpus[0].pci == "0000:17:00.0");
  REQUIRE(gpus[0].slices == std::vector<std::string>{"MIG-1", "MIG-2"});
  REQUIRE(gpus[0].numa_node == -1);
  REQUIRE(gpus[1].uuid.empty());
  REQUIRE(gpus[1].index == 1);  // it keeps its number
  REQUIRE(gpus[2].index == 2);
  REQUIRE(gpus[2].pci == "0000:ab:00.0");
  REQUIRE(gpus[2].numa_node == 1);
  REQUIRE(count_gpus({{"MUSTER_NVML_LIBRARY", FAKE_NVML_LIBRARY}, {"CUDA_VISIBLE_DEVICES", "2,0"}}) == 2);
  REQUIRE(gpu_paths({{"MUSTER_NVML_LIBRARY", "/x"}}).library == "/x");
}

TEST_CASE("without the library the driver's directory tells how many GPUs there are") {
  const test::TemporaryDirectory directory;
  write(directory.path() + "/0000:17:00.0/information", "");
  write(directory.path() + "/0000:03:00.0/information", "");
  const auto gpus = find_gpus({"/nonexistent/libnvidia-ml.so.1", directory.path(), "/nonexistent"});
  REQUIRE(gpus.size() == 2);
  REQUIRE(gpus[0].pci == "0000:03:00.0");
  REQUIRE(gpus[1].index == 1);
  REQUIRE(gpus[1].uuid.empty());
}

TEST_CASE("a driver that does not answer is an error with its reason, a library that is none another") {
  const FakeGpus fake("init=18\n");
  const auto mismatch = Nvml::open(FAKE_NVML_LIBRARY);
  REQUIRE_FALSE(mismatch);
  REQUIRE(mismatch.error().code == ErrorCode::kIo);
  REQUIRE_THAT(mismatch.error().message, Catch::Contains("Driver/library version mismatch (18)"));
  REQUIRE(Nvml::open("/nonexistent/x.so").error().code == ErrorCode::kNotFound);
  REQUIRE(Nvml::open("libm.so.6").error().code == ErrorCode::kUnsupported);
}

TEST_CASE("a GPU's state is read: memory, who holds it, errors, and what it does not know is nothing") {
  const FakeGpus fake("GPU-1 0000:17:00.0 512 3 1 77,78\n");
  const auto nvml = Nvml::open(FAKE_NVML_LIBRARY);
  REQUIRE_OK(nvml);
  REQUIRE(nvml->read(1).lost);
  const Nvml::GpuHealth gpu = nvml->read(0);
  REQUIRE_FALSE(gpu.lost);
  REQUIRE(gpu.used_bytes == std::uint64_t{512} << 20);
  REQUIRE(gpu.holders.size() == 2);
  REQUIRE(gpu.holders[1].pid == 78);
  REQUIRE(gpu.holders[1].bytes == std::uint64_t{512} << 20);
  REQUIRE(gpu.uncorrected_ecc == 3);
  REQUIRE(gpu.rows_failed);
  REQUIRE_FALSE(gpu.reset_wanted);
}
