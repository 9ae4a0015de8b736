// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/preflight/device_check.h"

#include <sys/wait.h>

#include "tests/support/catch.h"

using namespace muster;
using namespace muster::preflight;
using namespace std::chrono_literals;
using End = DeviceCheck::End;

namespace {

DeviceCheck gpu(int index, double tera, double gib = 3000) {
  DeviceCheck out;
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

std::vector<Finding> judged(const std::vector<DeviceCheck>& checks) {
  return judge(checks, 60s);
}

/// The only one.
std::string error(const std::vector<DeviceCheck>& checks) {
  const auto findings = judged(checks);
  REQUIRE(findings.size() == 1);
  REQUIRE(findings[0].error);
  return findings[0].text;
}

DeviceCheck died(DeviceCheck check, const std::string& step, int signal) {
  check.step = step;
  check.done = false;
  check.signal = signal;
  return check;
}

DeviceCheck with_end(DeviceCheck check, const std::string& step, End end, bool was_ready) {
  check.step = step;
  check.done = false;
  check.end = end;
  if (!was_ready) check.ready.reset();
  return check;
}

/// A shell stands for muster-preflight.
struct Fakes {
  std::string program = "/bin/sh";
  std::vector<DeviceProcess> devices;

  void add(const std::string& script) {
    devices.push_back({"GPU " + std::to_string(devices.size()), true, {"-c", script}});
  }
  std::vector<std::string> run(std::chrono::milliseconds timeout = 60s) {
    std::vector<std::string> out;
    for (const Finding& finding : judge(run_checks(program, devices, timeout), timeout))
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

TEST_CASE("what a check says is read word by word, and anything else is an error") {
  DeviceCheck check;
  for (const char* line :
       {"at the GEMM", "copy 1073741824", "gemm 6.1e13", "ready 4711", "reduce 12", "done "})
    read_line(check, line);
  REQUIRE(check.step == "the GEMM");
  REQUIRE(check.copy == 1073741824.0);
  REQUIRE(check.gemm == 6.1e13);
  REQUIRE(check.ready == 4711);
  REQUIRE(check.done);
  REQUIRE(check.error.empty());
  for (const char* line : {"", "gemm", "gemm x", "gemm -1", "gemm nan", "gemm 1e300", "copy 0", "ready 70000",
                           "ready", "Segmentation fault"}) {
    DeviceCheck other;
    read_line(other, line);
    REQUIRE_FALSE(other.error.empty());
  }
  read_line(check, "bad the GEMM's result is wrong in 3 of 512 rows");
  REQUIRE(check.error == "the GEMM's result is wrong in 3 of 512 rows");
}

TEST_CASE("GPUs that keep up with their neighbours are fit, one that does not is named with the median") {
  REQUIRE(judged({gpu(0, 640), gpu(1, 631), gpu(2, 645), gpu(3, 500)}).empty());
  REQUIRE(error({gpu(0, 640), gpu(1, 635), gpu(2, 645), gpu(3, 61.2), gpu(4, 640)}) ==
          "GPU 3: GEMM 61.2 TFLOP/s, the median of this node is 640");
  REQUIRE(error({gpu(0, 640), gpu(1, 61)}) == "GPU 1: GEMM 61.0 TFLOP/s, the other one has 640");
  REQUIRE(error({gpu(0, 640), gpu(1, 640, 900), gpu(2, 640)}) ==
          "GPU 1: memory copies 900 GiB/s, the median of this node is 3000");
  REQUIRE(judged({gpu(0, 0.001)}).empty());  // nothing to compare with
}

TEST_CASE("a slow CPU is a warning: it may have guests") {
  DeviceCheck fast = gpu(0, 0.05), slow = gpu(1, 0.02), usual = gpu(2, 0.05);
  for (DeviceCheck* each : {&fast, &slow, &usual}) each->is_gpu = false;
  const auto findings = judged({fast, slow, usual});
  REQUIRE(findings ==
          std::vector<Finding>{{false, "GPU 1: GEMM 20.0 GFLOP/s, the median of this node is 50.0"}});
}

TEST_CASE("who dies, hangs or computes wrongly is named with the step, and those who waited are not") {
  const auto waiting = with_end(gpu(0, 640), "the GEMM", End::kStopped, true);
  REQUIRE(error({waiting, died(gpu(1, 640), "the GEMM", 11)}) ==
          "GPU 1: the check died in the GEMM (SIGSEGV)");
  REQUIRE(error({waiting, with_end(gpu(1, 640), "the GEMM", End::kLate, false)}) ==
          "GPU 1: the GEMM took more than 60 s");
  DeviceCheck wrong = with_end(gpu(1, 640), "the GEMM", End::kEnded, false);
  wrong.error = "the GEMM's result is wrong in 1 of 4096 rows";
  REQUIRE(error({waiting, wrong}) == "GPU 1: the GEMM's result is wrong in 1 of 4096 rows");
}

TEST_CASE("in the all-reduce the dead one is to blame, one late one too, and for all together none is") {
  DeviceCheck left_alone = with_end(gpu(0, 640), "the all-reduce", End::kEnded, true);
  left_alone.error = "rank 1 is gone";
  REQUIRE(error({left_alone, died(gpu(1, 640), "the all-reduce", 9)}) ==
          "GPU 1: the check died in the all-reduce (SIGKILL)");
  const auto late = with_end(gpu(1, 640), "the all-reduce", End::kLate, true);
  REQUIRE(error({gpu(0, 640), late}) == "GPU 1: the all-reduce took more than 60 s");
  REQUIRE(error({late, late, late}) == "the all-reduce of 3 devices took more than 60 s");
}

TEST_CASE("the figures of a node are one line") {
  REQUIRE(speeds_text(std::vector<DeviceCheck>{gpu(0, 631), gpu(1, 645), gpu(2, 640)}) ==
          "3 GPUs: GEMM 631 to 645 TFLOP/s (median 640), memory copies 3000 GiB/s, all-reduce 350 GiB/s");
  DeviceCheck cpu = gpu(0, 0.0512, 9.876);
  cpu.is_gpu = false;
  cpu.reduce.reset();
  REQUIRE(speeds_text(std::vector<DeviceCheck>{cpu}) ==
          "1 process: GEMM 51.2 GFLOP/s, memory copies 9.88 GiB/s");
  REQUIRE(speeds_text({}).empty());
}

TEST_CASE("checks run together once each is through alone, and all end") {
  Fakes fakes;
  for (int i = 0; i < 3; ++i) fakes.add(kGood);
  REQUIRE(fakes.run().empty());
}

TEST_CASE("a check that dies alone is named, and those that wait for it are let go") {
  Fakes fakes;
  fakes.add(kPatient);
  fakes.add("echo at the GEMM; kill -SEGV $$");
  fakes.add(kPatient);
  REQUIRE(fakes.run() == std::vector<std::string>{"GPU 1: the check died in the GEMM (SIGSEGV)"});
}

TEST_CASE("a check that hangs alone is named at the deadline, and ended") {
  Fakes fakes;
  fakes.add(kPatient);
  fakes.add("echo at the start of CUDA; exec sleep 600");
  REQUIRE(fakes.run(5s) == std::vector<std::string>{"GPU 1: the start of CUDA took more than 5 s"});
  REQUIRE(::waitpid(-1, nullptr, WNOHANG) == -1);  // no child is left
}

TEST_CASE("what a check finds wrong is its verdict, and nonsense is too") {
  Fakes fakes;
  fakes.add("echo at the GEMM; echo 'bad it is wrong'; exit 1");
  REQUIRE(fakes.run() == std::vector<std::string>{"GPU 0: it is wrong"});
  Fakes nonsense;
  nonsense.add("echo hello; exit 0");
  REQUIRE_THAT(nonsense.run().at(0), Catch::StartsWith("GPU 0: unexpected output: hello"));
  Fakes endless;
  endless.add("while :; do echo at 0123456789012345678901234567890123456789; done");
  REQUIRE(endless.run() == std::vector<std::string>{"GPU 0: more output than muster-preflight ever writes"});
  Fakes early;
  early.add("exit 0");
  REQUIRE(early.run() ==
          std::vector<std::string>{"GPU 0: the check ended before its first step (exit status 0)"});
  Fakes missing;
  missing.add("");
  missing.program += "-not-there";
  REQUIRE_THAT(missing.run().at(0), Catch::Contains("cannot be started: No such file"));
}

TEST_CASE("one that dies in the all-reduce is named, and what the others say of it is not") {
  Fakes fakes;
  fakes.add("echo ready 77; read go; echo at the all-reduce; echo 'bad rank 1 is gone'; exit 1");
  fakes.add("echo ready 0; read go; echo at the all-reduce; kill -KILL $$");
  fakes.add("echo ready 0; read go; echo at the all-reduce; read never");
  REQUIRE(fakes.run() == std::vector<std::string>{"GPU 1: the check died in the all-reduce (SIGKILL)"});
}
