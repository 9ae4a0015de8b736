// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/preflight/device_check.h"

#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/preflight/device_work.h"

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

DeviceCheck died(DeviceCheck check, std::string_view step, int signal) {
  check.step = step;
  check.done = false;
  check.signal = signal;
  return check;
}

DeviceCheck with_end(DeviceCheck check, std::string_view step, End end, bool was_ready) {
  check.step = step;
  check.done = false;
  check.end = end;
  if (!was_ready) check.ready.reset();
  return check;
}

using CheckWork = std::function<Result<void>(DeviceLink&)>;

std::vector<std::string> run(const std::vector<CheckWork>& works, std::chrono::milliseconds timeout = 60s) {
  std::vector<DeviceProcess> devices;
  for (const CheckWork& work : works)
    devices.push_back({"GPU " + std::to_string(devices.size()), true, work});
  std::vector<std::string> out;
  for (const Finding& finding : judge(run_checks(devices, timeout), timeout)) out.push_back(finding.text);
  return out;
}

void begin(DeviceLink& link, std::string_view step) {
  link.report.step = step;
  link.send();
}

/// The port that it is to go on with.
std::uint16_t wait_for_others(DeviceLink& link, std::uint16_t port) {
  link.report.ready = port;
  link.send();
  return link.wait_to_go();
}

Result<void> good(DeviceLink& link) {
  begin(link, "the GEMM");
  link.report.gemm = 1000;
  if (wait_for_others(link, 77) != 77) ::_exit(9);
  begin(link, "the all-reduce");
  link.report.reduce = 5;
  link.report.done = true;
  link.send();
  (void)link.wait_to_go();
  return {};
}

/// Without the others there is no port.
Result<void> patient(DeviceLink& link) {
  begin(link, "the GEMM");
  link.report.gemm = 1000;
  if (wait_for_others(link, 77) != 0) ::_exit(9);
  link.report.done = true;
  link.send();
  return {};
}

}  // namespace

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
  REQUIRE(run({good, good, good}).empty());
}

TEST_CASE("a check that dies alone is named, and those that wait for it are let go") {
  const auto dies = [](DeviceLink& link) -> Result<void> {
    begin(link, "the GEMM");
    ::signal(SIGSEGV, SIG_DFL);
    ::raise(SIGSEGV);
    return {};
  };
  REQUIRE(run({patient, dies, patient}) ==
          std::vector<std::string>{"GPU 1: the check died in the GEMM (SIGSEGV)"});
}

TEST_CASE("a check that hangs alone is named at the deadline, and ended") {
  const auto hangs = [](DeviceLink& link) -> Result<void> {
    begin(link, "the start of CUDA");
    while (true) ::pause();
  };
  REQUIRE(run({patient, hangs}, 5s) ==
          std::vector<std::string>{"GPU 1: the start of CUDA took more than 5 s"});
  REQUIRE(::waitpid(-1, nullptr, WNOHANG) == -1);  // no child is left
}

TEST_CASE("what a check finds wrong is its verdict, in one line of some length") {
  const auto wrong = [](DeviceLink& link) -> Result<void> {
    begin(link, "the GEMM");
    return fail(ErrorCode::kCorrupt, "it is\nwrong" + std::string(1000, '!'));
  };
  REQUIRE_THAT(run({wrong}).at(0), Catch::StartsWith("GPU 0: it is wrong!!!"));
  REQUIRE(run({wrong}).at(0).size() < 320);
  const auto ends = [](DeviceLink&) -> Result<void> { return {}; };
  REQUIRE(run({ends}) ==
          std::vector<std::string>{"GPU 0: the check ended before its first step (exit status 0)"});
}

TEST_CASE("one that dies in the all-reduce is named, and what the others say of it is not") {
  const auto in_all_reduce = [](std::uint16_t port, const CheckWork& then) -> CheckWork {
    return [=](DeviceLink& link) {
      (void)wait_for_others(link, port);
      begin(link, "the all-reduce");
      return then(link);
    };
  };
  REQUIRE(run({in_all_reduce(77, [](DeviceLink&) { return fail(ErrorCode::kPeerGone, "rank 1 is gone"); }),
               in_all_reduce(0,
                             [](DeviceLink&) -> Result<void> {
                               ::raise(SIGKILL);
                               return {};
                             }),
               in_all_reduce(0, [](DeviceLink& link) -> Result<void> {
                 (void)link.wait_to_go();
                 return {};
               })}) == std::vector<std::string>{"GPU 1: the check died in the all-reduce (SIGKILL)"});
}

TEST_CASE("the CPU passes its checks, and a group of one rank reduces") {
  const Compute compute = *make_compute(DeviceType::kCpu);
  const auto copied = measure_copies(*compute);
  REQUIRE_OK(copied);
  REQUIRE(*copied > 0);
  const auto multiplied = measure_gemm(*compute);
  REQUIRE_OK(multiplied);
  REQUIRE(*multiplied > 0);
  const auto group = make_single_group();
  REQUIRE_OK(measure_all_reduce(*compute, *group));
}
