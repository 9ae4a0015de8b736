// SPDX-License-Identifier: Apache-2.0
#include "launcher/checks/device_trial.h"

#include <fstream>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launcher/checks/trial_plan.h"
#include "rendezvous/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;
using namespace std::chrono_literals;
using End = DeviceTrial::End;

namespace {

DeviceTrial gpu(int index, double tera, double gib = 3000) {
  DeviceTrial out;
  out.name = "GPU " + std::to_string(index);
  out.is_gpu = true;
  out.step = "the all-reduce";
  out.gemm = tera * 1e12;
  out.copy = gib * (1 << 30);
  out.reduce = 350.0 * (1 << 30);
  out.ready = 0;
  out.done = true;
  out.end = End::kEnded;
  return out;
}

std::vector<Finding> judged(const std::vector<DeviceTrial>& trials) {
  return judge_trials(trials, 60s);
}

/// The only one.
std::string unfit(const std::vector<DeviceTrial>& trials) {
  const auto findings = judged(trials);
  REQUIRE(findings.size() == 1);
  REQUIRE(findings[0].unfit);
  return findings[0].text;
}

DeviceTrial died(DeviceTrial trial, const std::string& step, int signal) {
  trial.step = step;
  trial.done = false;
  trial.process.signal = signal;
  return trial;
}

DeviceTrial with_end(DeviceTrial trial, const std::string& step, End end, bool was_ready) {
  trial.step = step;
  trial.done = false;
  trial.end = end;
  if (!was_ready) trial.ready.reset();
  return trial;
}

/// Programs that stand for muster-preflight.
struct Fakes {
  test::TemporaryDirectory directory;
  TrialPlan plan;

  Fakes() {
    plan.program = directory.path() + "/fake";
    std::ofstream(plan.program) << "#!/bin/sh\neval \"$1\"\n";
    REQUIRE(::chmod(plan.program.c_str(), 0755) == 0);
  }
  void add(const std::string& script) {
    plan.devices.push_back(
        {"GPU " + std::to_string(plan.devices.size()), true, {script}, {{"PATH", "/usr/bin:/bin"}}});
  }
  std::vector<std::string> run(std::chrono::milliseconds patience = 60s) {
    std::vector<std::string> out;
    for (const Finding& finding : judge_trials(run_trials(plan, patience), patience))
      out.push_back(finding.text);
    return out;
  }
};

constexpr const char* kGood =
    "echo at the GEMM; echo gemm 1000; echo ready 77; read word port; [ \"$word $port\" = \"go 77\" ] || "
    "exit 9;"
    "echo at the all-reduce; echo reduce 5; echo done; read end; exit 0";
// Without the others there is no port.
constexpr const char* kPatient =
    "echo at the GEMM; echo gemm 1000; echo ready 77; read word port; echo done; exit 0";

}  // namespace

TEST_CASE("what a trial says is read word by word, and anything else is its defect") {
  DeviceTrial trial;
  for (const char* line :
       {"at the GEMM", "copy 1073741824", "gemm 6.1e13", "ready 4711", "reduce 12", "done "})
    take_line(trial, line);
  REQUIRE(trial.step == "the GEMM");
  REQUIRE(trial.copy == 1073741824.0);
  REQUIRE(trial.gemm == 6.1e13);
  REQUIRE(trial.ready == 4711);
  REQUIRE(trial.done);
  REQUIRE(trial.defect.empty());
  for (const char* line : {"", "gemm", "gemm x", "gemm -1", "gemm nan", "gemm 1e300", "copy 0", "ready 70000",
                           "ready", "Segmentation fault"}) {
    DeviceTrial other;
    take_line(other, line);
    REQUIRE_FALSE(other.defect.empty());
  }
  take_line(trial, "bad the GEMM's result is wrong in 3 of 512 rows");
  REQUIRE(trial.defect == "the GEMM's result is wrong in 3 of 512 rows");
}

TEST_CASE("GPUs that keep up with their neighbours are fit, one that does not is named with the median") {
  REQUIRE(judged({gpu(0, 640), gpu(1, 631), gpu(2, 645), gpu(3, 500)}).empty());
  REQUIRE(unfit({gpu(0, 640), gpu(1, 635), gpu(2, 645), gpu(3, 61.2), gpu(4, 640)}) ==
          "GPU 3: GEMM 61.2 TFLOP/s, the median of the node 640");
  REQUIRE(unfit({gpu(0, 640), gpu(1, 61)}) == "GPU 1: GEMM 61.0 TFLOP/s, its neighbour 640");
  REQUIRE(unfit({gpu(0, 640), gpu(1, 640, 900), gpu(2, 640)}) ==
          "GPU 1: memory copies 900 GiB/s, the median of the node 3000");
  REQUIRE(judged({gpu(0, 0.001)}).empty());  // nothing to compare with
}

TEST_CASE("a slow CPU is a warning: it may have guests") {
  DeviceTrial fast = gpu(0, 0.05), slow = gpu(1, 0.02), usual = gpu(2, 0.05);
  for (DeviceTrial* each : {&fast, &slow, &usual}) each->is_gpu = false;
  const auto findings = judged({fast, slow, usual});
  REQUIRE(findings == std::vector<Finding>{{false, "GPU 1: GEMM 20.0 GFLOP/s, the median of the node 50.0"}});
}

TEST_CASE("who dies, hangs or computes wrongly is named with the step, and those who waited are not") {
  const auto waiting = with_end(gpu(0, 640), "the GEMM", End::kStopped, true);
  REQUIRE(unfit({waiting, died(gpu(1, 640), "the GEMM", 11)}) == "GPU 1: it died in the GEMM (SIGSEGV)");
  REQUIRE(unfit({waiting, with_end(gpu(1, 640), "the GEMM", End::kLate, false)}) ==
          "GPU 1: the GEMM took more than 60 s");
  DeviceTrial wrong = with_end(gpu(1, 640), "the GEMM", End::kEnded, false);
  wrong.defect = "the GEMM's result is wrong in 1 of 4096 rows";
  REQUIRE(unfit({waiting, wrong}) == "GPU 1: the GEMM's result is wrong in 1 of 4096 rows");
}

TEST_CASE("in the all-reduce the dead one is to blame, one late one too, and for all together none is") {
  DeviceTrial left_alone = with_end(gpu(0, 640), "the all-reduce", End::kEnded, true);
  left_alone.defect = "rank 1 is gone";
  REQUIRE(unfit({left_alone, died(gpu(1, 640), "the all-reduce", 9)}) ==
          "GPU 1: it died in the all-reduce (SIGKILL)");
  const auto late = with_end(gpu(1, 640), "the all-reduce", End::kLate, true);
  REQUIRE(unfit({gpu(0, 640), late}) == "GPU 1: the all-reduce took more than 60 s");
  REQUIRE(unfit({late, late, late}) == "the all-reduce of 3 devices took more than 60 s");
}

TEST_CASE("the figures of a node are one line") {
  REQUIRE(figures_text(std::vector<DeviceTrial>{gpu(0, 631), gpu(1, 645), gpu(2, 640)}) ==
          "3 GPUs: GEMM 631 to 645 TFLOP/s (median 640), memory copies 3000 GiB/s, all-reduce 350 GiB/s");
  DeviceTrial cpu = gpu(0, 0.0512, 9.876);
  cpu.is_gpu = false;
  cpu.reduce.reset();
  REQUIRE(figures_text(std::vector<DeviceTrial>{cpu}) ==
          "1 process: GEMM 51.2 GFLOP/s, memory copies 9.88 GiB/s");
  REQUIRE(figures_text({}).empty());
}

TEST_CASE("trials run together once each is through alone, and all end") {
  Fakes fakes;
  for (int i = 0; i < 3; ++i) fakes.add(kGood);
  REQUIRE(fakes.run().empty());
}

TEST_CASE("a trial that dies alone is named, and those that wait for it are let go") {
  Fakes fakes;
  fakes.add(kPatient);
  fakes.add("echo at the GEMM; kill -SEGV $$");
  fakes.add(kPatient);
  REQUIRE(fakes.run() == std::vector<std::string>{"GPU 1: it died in the GEMM (SIGSEGV)"});
}

TEST_CASE("a trial that hangs alone is named at the deadline, with all it has started") {
  Fakes fakes;
  fakes.add(kPatient);
  const std::string pid_file = fakes.directory.path() + "/pid";
  fakes.add("echo at the start of CUDA; sleep 600 & echo $! > " + pid_file + "; wait");
  REQUIRE(fakes.run(5s) == std::vector<std::string>{"GPU 1: the start of CUDA took more than 5 s"});
  int pid = 0;
  std::ifstream(pid_file) >> pid;
  REQUIRE(pid > 1);
  const UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));
  pollfd gone{handle.get(), POLLIN, 0};
  REQUIRE((!handle || ::poll(&gone, 1, 20'000) == 1));
}

TEST_CASE("what a trial finds wrong is its verdict, and nonsense is too") {
  Fakes fakes;
  fakes.add("echo at the GEMM; echo 'bad it is wrong'; exit 1");
  REQUIRE(fakes.run() == std::vector<std::string>{"GPU 0: it is wrong"});
  Fakes nonsense;
  nonsense.add("echo hello; exit 0");
  REQUIRE_THAT(nonsense.run().at(0), Catch::StartsWith("GPU 0: it says 'hello'"));
  Fakes endless;
  endless.add("while :; do echo at 0123456789012345678901234567890123456789; done");
  REQUIRE(endless.run() == std::vector<std::string>{"GPU 0: it says more than muster-preflight ever does"});
  Fakes early;
  early.add("exit 0");
  REQUIRE(early.run() == std::vector<std::string>{"GPU 0: it ended before its first step (exit status 0)"});
  Fakes missing;
  missing.add("");
  missing.plan.program += "-not-there";
  REQUIRE_THAT(missing.run().at(0), Catch::Contains("cannot be started: No such file"));
}

TEST_CASE("one that dies in the all-reduce is named, and what the others say of it is not") {
  Fakes fakes;
  fakes.add("echo ready 77; read go; echo at the all-reduce; echo 'bad rank 1 is gone'; exit 1");
  fakes.add("echo ready 0; read go; echo at the all-reduce; kill -KILL $$");
  fakes.add("echo ready 0; read go; echo at the all-reduce; read never");
  REQUIRE(fakes.run() == std::vector<std::string>{"GPU 1: it died in the all-reduce (SIGKILL)"});
}

TEST_CASE("each visible GPU is tried, all seeing the same list; slices each for themselves") {
  std::vector<Gpu> gpus(3);
  for (int i = 0; i < 3; ++i) gpus[static_cast<std::size_t>(i)].index = i;
  gpus[2].uuid = "GPU-c";
  gpus[1].slices = {"MIG-x", "MIG-y"};
  const auto trials = gpu_trials(gpus, "2,0", {{"HOME", "/"}});
  REQUIRE(trials.size() == 2);
  REQUIRE(trials[0].name == "GPU 2 (GPU-c)");
  REQUIRE(trials[0].arguments == std::vector<std::string>{"--rank=0", "--world=2", "--gpu=0"});
  REQUIRE(trials[1].environment ==
          Environment{{"HOME", "/"}, {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES", "2,0"}});
  const auto slices = gpu_trials(gpus, "MIG-x,MIG-y", {});
  REQUIRE(slices[1].name == "GPU slice MIG-y");
  REQUIRE(slices[1].arguments == std::vector<std::string>{"--rank=1", "--world=2", "--alone", "--gpu=0"});
  REQUIRE(slices[1].environment.at("CUDA_VISIBLE_DEVICES") == "MIG-y");
  REQUIRE(gpu_trials(gpus, std::nullopt, {}).size() == 3);
  REQUIRE(gpu_trials(gpus, "", {}).empty());
}

TEST_CASE("without GPUs every socket is tried, and as many workers as there are cores for") {
  Topology topology;
  for (int i = 0; i < 4; ++i) topology.cores.push_back({{2 * i, 2 * i + 1}, 0, i / 2, 0});
  const auto few = cpu_trials(topology, 1, {});
  REQUIRE(few.size() == 2);
  REQUIRE(few[1].name == "socket 1");
  REQUIRE(few[1].arguments == std::vector<std::string>{"--rank=1", "--world=2", "--cpus=4,5,6,7"});
  const auto many = cpu_trials(topology, 64, {});
  REQUIRE(many.size() == 4);
  REQUIRE(many[3].name == "socket 1, process 1");
}
