// SPDX-License-Identifier: Apache-2.0
// What the machine says of a worker's end: the kernel's log, control groups, devices.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "launcher/hardware/device_choice.h"
#include "launcher/process/cgroup.h"
#include "launcher/report/kernel_log.h"
#include "tests/support/catch.h"
#include "tests/support/fieldwise.h"

using namespace muster::launcher;

namespace {

/// A directory that goes away with it.
struct Scratch {
  Scratch() {
    char name[] = "/tmp/muster_evidence_XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~Scratch() { std::filesystem::remove_all(path); }
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path + "/" + name, std::ios::app) << text;
    return path + "/" + name;
  }
  std::string path;
};

}  // namespace

TEST_CASE("Xid lines name the device, the number and the process, in the forms that drivers have had") {
  REQUIRE(parse_xid("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.") ==
          Xid{79, "0000:3b:00", 1234});
  REQUIRE(parse_xid("NVRM: Xid (PCI:0000:01:00): 31, pid='77', name=x, Ch 00000008") ==
          Xid{31, "0000:01:00", 77});
  REQUIRE(parse_xid("NVRM: Xid (PCI:0000:86:00 GPU-I:05): 13, pid=9, Graphics Exception") ==
          Xid{13, "0000:86:00", 9});
  REQUIRE(parse_xid("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, x") ==
          Xid{79, "0000:3b:00", 0});
  REQUIRE(parse_xid("NVRM: Xid (0000:03:00): 8, Channel 00000007") == Xid{8, "0000:03:00", 0});
  for (const char* line : {"", "NVRM: Xid (", "NVRM: Xid (PCI:0): x", "NVRM: loading", "Xid 79"}) {
    INFO(line);
    REQUIRE_FALSE(parse_xid(line));
  }
}

TEST_CASE("the kernel's words about a process that it killed for memory name its pid") {
  REQUIRE(parse_memory_kill("Memory cgroup out of memory: Killed process 1234 (python) total-vm:1kB") ==
          1234);
  REQUIRE(parse_memory_kill("Out of memory: Killed process 7 (a b) total-vm:1kB") == 7);
  REQUIRE(parse_memory_kill("Out of memory: Kill process 8 (x) score 900 or sacrifice child") == 8);
  REQUIRE_FALSE(parse_memory_kill("Killed process 8"));
  REQUIRE_FALSE(parse_memory_kill("Out of memory: nothing"));
}

TEST_CASE("the kernel's log is read from where it was opened, without its prefixes") {
  const Scratch scratch;
  const std::string path = scratch.write("kmsg", "4,1,10,-;NVRM: Xid (PCI:0000:01:00): 1, of before\n");
  KernelLog log(path);
  REQUIRE(log.take_new().empty());
  (void)scratch.write("kmsg",
                      "4,2,11,-;NVRM: Xid (PCI:0000:01:00): 79, x\n SUBSYSTEM=pci\n6,3,12,-;other\nhal");
  REQUIRE(log.take_new() == std::vector<std::string>{"NVRM: Xid (PCI:0000:01:00): 79, x", "other"});
  REQUIRE(log.take_new().empty());
  REQUIRE(KernelLog(scratch.path + "/none").take_new().empty());
}

TEST_CASE("a control group is below the usual mount, or in a container the mount itself") {
  using Places = std::vector<std::string>;
  constexpr std::string_view kBoth = "5:cpu:/c\n4:memory:/job/x\n0::/a/b\n";
  REQUIRE(cgroup::candidates(kBoth, "memory") ==
          Places{"/sys/fs/cgroup/memory/job/x", "/sys/fs/cgroup/memory"});
  REQUIRE(cgroup::candidates(kBoth, "", "/cg") == Places{"/cg/a/b", "/cg", "/cg/unified/a/b", "/cg/unified"});
  REQUIRE(cgroup::candidates("0::/\n", "", "/cg") == Places{"/cg", "/cg/unified"});
  REQUIRE(cgroup::candidates("0::/\n", "memory").empty());
  REQUIRE(cgroup::candidates("", "").empty());
}

TEST_CASE("kills are counted from the beginning on") {
  REQUIRE(parse_oom_kills("low 0\noom 3\noom_kill 2\noom_group_kill 1\n") == 2);
  REQUIRE(parse_oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n") == 5);
  REQUIRE_FALSE(parse_oom_kills("oom_kill_disable 1\n"));
  const Scratch scratch;
  const std::string groups = scratch.write("cgroup", "0::/of/the/host\n");
  const std::string events = scratch.write("memory.events", "oom_kill 4\n");
  OomKillCounter kills(groups, scratch.path);
  REQUIRE(kills.take_new() == 0);
  std::ofstream(events) << "oom_kill 6\n";
  REQUIRE(kills.take_new() == 2);
  REQUIRE(kills.take_new() == 0);
  REQUIRE(OomKillCounter("/no/such/file").take_new() == 0);
}

TEST_CASE("a worker's device is the one of its local rank among the visible ones") {
  const auto gpu = [](int index, const char* uuid, const char* address,
                      std::vector<std::string> slices = {}) {
    Gpu out;
    out.index = index;
    out.uuid = uuid;
    out.pci = address;
    out.slices = std::move(slices);
    return out;
  };
  const std::vector<Gpu> gpus{gpu(0, "GPU-aa", "0000:01:00.0"), gpu(1, "GPU-bb", "0000:3b:00.0"),
                              gpu(2, "GPU-cc", "0000:5e:00.0", {"MIG-x", "MIG-y"})};
  const auto device = [&](std::optional<std::string_view> variable, int rank) {
    return device_of_worker(variable, rank, gpus);
  };
  REQUIRE(device({}, 1) == WorkerDevice{"GPU 1 (GPU-bb)", "0000:3b:00.0", 1});
  REQUIRE(device({}, 3) == WorkerDevice{});
  REQUIRE(device("2,0", 0) == WorkerDevice{"GPU 2 (GPU-cc)", "0000:5e:00.0", 2});
  REQUIRE(device("GPU-b", 0) == WorkerDevice{"GPU 1 (GPU-bb)", "0000:3b:00.0", 1});
  REQUIRE(device("2", 1) == WorkerDevice{});
  REQUIRE(device("", 0) == WorkerDevice{});
  REQUIRE(device("MIG-x,MIG-y", 1) == WorkerDevice{"GPU slice MIG-y", "0000:5e:00.0", 2});
  REQUIRE(device_of_worker({}, 0, std::vector<Gpu>(1)) == WorkerDevice{"GPU 0", "", 0});
  REQUIRE(device_of_worker({}, 0, {}) == WorkerDevice{});
}
